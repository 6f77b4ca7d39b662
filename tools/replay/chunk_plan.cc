#include "tools/replay/chunk_plan.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "tools/load/payload.h"

namespace kvcachefs {

Status check_chunk_tokens(uint64_t chunk_tokens, uint64_t block_tokens) {
  if (chunk_tokens > 0 && (chunk_tokens % block_tokens == 0 || block_tokens % chunk_tokens == 0)) return {};
  return fail(Code::kInvalid, fmt::format("--chunk-tokens {}: must divide the trace's blocks of {} tokens or be a "
                                          "multiple of them",
                                          chunk_tokens, block_tokens));
}

std::vector<uint64_t> chunk_keys(const TraceRequest& request, uint64_t block_tokens, uint64_t chunk_tokens,
                                 uint64_t salt) {
  // Some traces give the last block an id although the input does not fill it; other traces do not.
  const uint64_t tokens = std::min(request.input_tokens, request.blocks.size() * block_tokens);
  std::vector<uint64_t> keys;
  keys.reserve(tokens / chunk_tokens);
  for (uint64_t i = 0; i < tokens / chunk_tokens; ++i) {
    const uint64_t last_token = (i + 1) * chunk_tokens - 1;
    const uint64_t part = chunk_tokens < block_tokens ? last_token % block_tokens / chunk_tokens : 0;
    keys.push_back(mix64(mix64(request.blocks[last_token / block_tokens] ^ salt) + part));
  }
  return keys;
}

Status check_deal(Deal deal, const Trace& trace) {
  const bool sessions = std::ranges::all_of(trace.requests, [](const TraceRequest& request) { return request.session > 0; });
  if (deal == Deal::kRoundRobin || sessions) return {};
  return fail(Code::kInvalid,
              "--deal session: the trace does not tell of sessions, its lines are single requests; use --deal round-robin");
}

std::vector<EngineRequest> engine_requests(const Trace& trace, const PlanOptions& options, uint64_t salt) {
  const size_t all = trace.requests.size(), count = options.limit == 0 ? all : std::min(options.limit, all);
  std::unordered_map<uint32_t, size_t> sessions;  // session numbers, in the order of first requests
  std::vector<EngineRequest> requests;
  requests.reserve(count);
  for (const TraceRequest& from : std::span(trace.requests).first(count)) {
    EngineRequest request;
    request.arrival_s = from.arrival_s - trace.requests.front().arrival_s;
    request.input_tokens = from.input_tokens;
    const size_t turn = options.deal == Deal::kSession ? sessions.try_emplace(from.session, sessions.size()).first->second
                                                       : requests.size();
    request.engine = static_cast<unsigned>(turn % options.engines);
    request.keys = chunk_keys(from, trace.block_tokens, options.chunk_tokens, salt);
    requests.push_back(std::move(request));
  }
  return requests;
}

PlanTotals plan_totals(std::span<const EngineRequest> requests) {
  PlanTotals totals;
  std::unordered_set<uint64_t> distinct;
  for (const EngineRequest& request : requests) {
    totals.input_tokens += request.input_tokens;
    totals.chunks += request.keys.size();
    distinct.insert(request.keys.begin(), request.keys.end());
  }
  totals.distinct_chunks = distinct.size();
  return totals;
}

}  // namespace kvcachefs
