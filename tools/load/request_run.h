// Runs many requests on several workers, by their timestamps (open loop) or as fast as the workers go (closed loop).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/phase.h"
#include "tools/load/request_engine.h"

namespace kvcachefs {

// Engines that have a directory each, or share one.
struct RunOptions {
  unsigned engines = 1;    // request.engine (modulo this) is the engine that serves a request
  unsigned workers = 1;    // of each engine: the next free one takes the engine's next request
  bool open_loop = false;  // a request starts at arrival_s / time_scale, or when a worker of its engine is free after that
  double time_scale = 1;   // the trace's clock runs this much faster
};

struct RunResult {
  std::vector<RequestOutcome> outcomes;  // in the order of the requests
  PhaseCost cost;                        // client CPU: of probes, reads and stores only
};

// Engine e uses roots[e], or all use the only one. In a closed loop, requests start in order, so that no engine
// runs ahead of another. Workers call `on_done` after each request, one call at a time.
Result<RunResult> run_requests(const std::vector<std::string>& roots, const EngineOptions& engine, const RunOptions& run,
                               std::span<const EngineRequest> requests, const std::function<void()>& on_done);

// The outcomes of the same requests without any cache: everything computed, same workers, same arrivals.
std::vector<RequestOutcome> recompute_only(const EngineOptions& engine, const RunOptions& run,
                                           std::span<const EngineRequest> requests);

// Sets unfound_* of each request: chunks that it did not find although earlier requests had stored them.
void count_unfound(std::span<const EngineRequest> requests, std::span<RequestOutcome> outcomes);

}  // namespace kvcachefs
