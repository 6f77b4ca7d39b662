// Turns the blocks of a trace into the chunks of an engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/base/result.h"
#include "tools/load/request_engine.h"
#include "tools/replay/trace.h"

namespace kvcachefs {

// Accepts token counts of which one divides the other; refuses anything else.
Status check_chunk_tokens(uint64_t chunk_tokens, uint64_t block_tokens);

// The keys of a request's whole chunks, in prefix order. The key of a chunk of several blocks comes from its last block (whose
// predecessors are always the same); each of several chunks of a block has its own key. `salt` makes the keys of one run differ
// from another's. A rest at the end that does not fill a chunk has no key.
std::vector<uint64_t> chunk_keys(const TraceRequest& request, uint64_t block_tokens, uint64_t chunk_tokens,
                                 uint64_t salt);

// How the requests of a trace are distributed over several engines.
enum class Deal : uint8_t {
  kRoundRobin,  // one request to each in turn
  kSession,     // all requests of a session to one engine; sessions in turn, by their first requests
};

// Refuses to distribute by sessions if the trace has none.
Status check_deal(Deal deal, const Trace& trace);

struct PlanOptions {
  uint64_t chunk_tokens = 256;
  size_t limit = 0;      // number of requests, from the start; 0: all
  unsigned engines = 1;  // number of engines
  Deal deal = Deal::kRoundRobin;
};

// The requests of a trace as seen by engines with such chunks.
std::vector<EngineRequest> engine_requests(const Trace& trace, const PlanOptions& options, uint64_t salt);

// Sums over the requests.
struct PlanTotals {
  uint64_t input_tokens = 0;
  uint64_t chunks = 0;
  uint64_t distinct_chunks = 0;
};
PlanTotals plan_totals(std::span<const EngineRequest> requests);

}  // namespace kvcachefs
