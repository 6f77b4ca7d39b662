#include "tools/simulate/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <unordered_map>

#include <fmt/format.h>

#include "tools/load/payload.h"
#include "tools/replay/chunk_plan.h"

namespace kvcachefs {
namespace {

class Numbering {
 public:
  uint32_t of(uint64_t key) {
    return numbers_.try_emplace(key, static_cast<uint32_t>(numbers_.size())).first->second;
  }
  uint32_t size() const { return static_cast<uint32_t>(numbers_.size()); }

 private:
  std::unordered_map<uint64_t, uint32_t> numbers_;
};

// Returns the start of each session, by its number in the trace.
std::vector<double> session_starts(const Trace& trace, const WorkloadSettings& settings) {
  uint32_t sessions = 0;
  for (const TraceRequest& request : trace.requests) sessions = std::max(sessions, request.session);
  std::vector<double> starts(sessions + size_t{1}, 0.0);
  std::vector<double> first(starts.size(), -1);
  for (const TraceRequest& request : trace.requests) {
    double& at = first[request.session];
    if (at < 0 || request.arrival_s < at) at = request.arrival_s;
  }
  std::mt19937_64 random(settings.seed);
  for (size_t session = 1; session < starts.size(); ++session) {
    const double part = static_cast<double>(random() >> 11) / static_cast<double>(uint64_t{1} << 53);
    starts[session] = part * settings.session_spread_s - std::max(0.0, first[session]);
  }
  return starts;
}

// Returns the tokens of an input beyond its last whole chunk, if the trace has a block for them that they do not fill; else 0.
uint64_t unfinished_tokens(const TraceRequest& request, uint64_t block_tokens, uint64_t chunk_tokens) {
  if (request.blocks.size() * block_tokens <= request.input_tokens) return 0;
  if ((request.blocks.size() - 1) * block_tokens >= request.input_tokens) return 0;
  return request.input_tokens % chunk_tokens;
}

}  // namespace

Result<Workload> make_workload(const Trace& trace, const std::string& name, const WorkloadSettings& settings) {
  Workload workload;
  workload.name = name;
  workload.unit_tokens = settings.chunk_tokens == 0 ? trace.block_tokens : settings.chunk_tokens;
  KVC_TRY(check_chunk_tokens(workload.unit_tokens, trace.block_tokens));
  const std::vector<double> starts = session_starts(trace, settings);
  std::vector<double> times(trace.requests.size());
  for (size_t i = 0; i < times.size(); ++i)
    times[i] = trace.requests[i].arrival_s + starts[trace.requests[i].session];
  std::vector<size_t> order(times.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return times[i]; });

  Numbering numbering;
  const double begin = order.empty() ? 0 : times[order.front()];
  for (const size_t i : order) {
    const TraceRequest& from = trace.requests[i];
    SimRequest request;
    request.time_ms = std::llround((times[i] - begin) * 1e3);
    request.first = workload.units.size();
    std::vector<uint64_t> keys = chunk_keys(from, trace.block_tokens, workload.unit_tokens, 0);
    request.last_tokens = static_cast<uint32_t>(workload.unit_tokens);
    if (const uint64_t rest = unfinished_tokens(from, trace.block_tokens, workload.unit_tokens); rest > 0) {
      keys.push_back(mix64(mix64(from.blocks.back()) + 0x756e66756c6cULL + keys.size()));
      request.last_tokens = static_cast<uint32_t>(rest);
    }
    for (const uint64_t key : keys) workload.units.push_back(numbering.of(key));
    request.units = static_cast<uint32_t>(keys.size());
    if (request.units > 0) workload.requests.push_back(request);
  }
  workload.distinct_units = numbering.size();
  if (workload.requests.empty()) {
    return fail(Code::kInvalid, fmt::format("{}: no request fills a chunk of {} tokens", name, workload.unit_tokens));
  }
  return workload;
}

Result<Workload> join(std::span<const Workload> parts, Join how) {
  Workload joined;
  joined.unit_tokens = parts.front().unit_tokens;
  struct Item {
    int64_t time_ms;
    uint32_t part;
    size_t request;
  };
  std::vector<Item> items;
  int64_t start_ms = 0;
  for (uint32_t part = 0; part < parts.size(); ++part) {
    if (parts[part].unit_tokens != joined.unit_tokens) {
      return fail(Code::kInvalid, fmt::format("{} has chunks of {} tokens and {} of {}: give --chunk-tokens",
                                              parts[part].name, parts[part].unit_tokens, parts[0].name,
                                              joined.unit_tokens));
    }
    joined.name += (part == 0 ? "" : how == Join::kAfter ? ", then " : " + ") + parts[part].name;
    for (size_t i = 0; i < parts[part].requests.size(); ++i)
      items.push_back({parts[part].requests[i].time_ms + start_ms, part, i});
    if (how == Join::kAfter) start_ms = items.back().time_ms + 1000;
  }
  std::ranges::stable_sort(items, {}, &Item::time_ms);
  Numbering numbering;
  for (const Item& item : items) {
    const Workload& part = parts[item.part];
    SimRequest request = part.requests[item.request];
    request.time_ms = item.time_ms;
    request.source = item.part;
    const auto units = part.of(request);
    request.first = joined.units.size();
    for (const uint32_t unit : units) joined.units.push_back(numbering.of((uint64_t{item.part} << 32) + unit));
    joined.requests.push_back(request);
  }
  joined.distinct_units = numbering.size();
  return joined;
}

Workload with_scan(const Workload& workload, uint64_t units) {
  constexpr uint32_t kShortest = 10, kLengths = 31;
  Workload scan;
  scan.name = "scan";
  scan.unit_tokens = workload.unit_tokens;
  for (uint32_t n = 0; scan.distinct_units < units; ++n) {
    SimRequest request;
    request.first = scan.units.size();
    request.units = kShortest + n % kLengths;
    request.last_tokens = static_cast<uint32_t>(scan.unit_tokens);
    for (uint32_t i = 0; i < request.units; ++i) scan.units.push_back(scan.distinct_units++);
    scan.requests.push_back(request);
  }
  const int64_t end_ms = workload.requests.back().time_ms;
  const auto count = static_cast<int64_t>(scan.requests.size());
  for (int64_t i = 0; i < count; ++i)
    scan.requests[static_cast<size_t>(i)].time_ms = end_ms / 2 + end_ms / 4 * i / std::max<int64_t>(count, 1);
  const Workload parts[] = {workload, std::move(scan)};
  Workload joined = std::move(*join(parts, Join::kBeside));
  joined.name = workload.name;
  return joined;
}

}  // namespace kvcachefs
