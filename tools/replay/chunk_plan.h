// From the blocks of a trace to the chunks of an engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/base/result.h"
#include "tools/load/request_engine.h"
#include "tools/replay/trace.h"

namespace kvcachefs {

// Either divides the other; anything else is refused.
Status check_chunk_tokens(uint64_t chunk_tokens, uint64_t block_tokens);

// The keys of a request's whole chunks, in prefix order. A chunk of several blocks is known by its last one (whose
// predecessors are always the same); a block of several chunks gives each a key of its own. `salt` tells one run's keys
// from another's. What does not fill a chunk, at the end, has none.
std::vector<uint64_t> chunk_keys(const TraceRequest& request, uint64_t block_tokens, uint64_t chunk_tokens,
                                 uint64_t salt);

// How the requests of a trace come to several engines.
enum class Deal : uint8_t {
  kRoundRobin,  // one request to each in turn
  kSession,     // all of a session to one, the sessions in turn by their first requests
};

// Refuses to deal by sessions where the trace has none.
Status check_deal(Deal deal, const Trace& trace);

struct PlanOptions {
  uint64_t chunk_tokens = 256;
  size_t limit = 0;      // only so many requests, from the start; 0: all
  unsigned engines = 1;  // that they are dealt to
  Deal deal = Deal::kRoundRobin;
};

// The requests of a trace as engines with such chunks would meet them.
std::vector<EngineRequest> engine_requests(const Trace& trace, const PlanOptions& options, uint64_t salt);

// What the requests add up to.
struct PlanTotals {
  uint64_t input_tokens = 0;
  uint64_t chunks = 0;
  uint64_t distinct_chunks = 0;
};
PlanTotals plan_totals(std::span<const EngineRequest> requests);

}  // namespace kvcachefs
