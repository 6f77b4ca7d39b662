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

// The first `limit` requests of a trace (0: all) as an engine with such chunks would meet them.
std::vector<EngineRequest> engine_requests(const Trace& trace, uint64_t chunk_tokens, size_t limit, uint64_t salt);

// What the requests add up to.
struct PlanTotals {
  uint64_t input_tokens = 0;
  uint64_t chunks = 0;
  uint64_t distinct_chunks = 0;
};
PlanTotals plan_totals(std::span<const EngineRequest> requests);

}  // namespace kvcachefs
