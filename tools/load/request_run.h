// Many requests on several workers, by their timestamps (open loop) or as fast as the workers go (closed loop).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/phase.h"
#include "tools/load/request_engine.h"

namespace kvcachefs {

// Engines that each have a directory of their own, or share one.
struct RunOptions {
  unsigned engines = 1;    // request.engine (modulo this) tells which one serves a request
  unsigned workers = 1;    // of each engine: the next free one takes the engine's next request
  bool open_loop = false;  // a request starts at arrival_s / time_scale, or when a worker of its engine is free after that
  double time_scale = 1;   // the trace's clock runs this much faster
};

struct RunResult {
  std::vector<RequestOutcome> outcomes;  // in the order of the requests
  PhaseCost cost;                        // client CPU: of probes, reads and stores only
};

// Engine e uses roots[e], or all use the only one. In a closed loop requests start in their order, so that no engine
// runs ahead of another. `on_done` is called after each request, one call at a time, from the workers.
Result<RunResult> run_requests(const std::vector<std::string>& roots, const EngineOptions& engine, const RunOptions& run,
                               std::span<const EngineRequest> requests, const std::function<void()>& on_done);

// What the requests would see without any cache: everything computed, same workers, same arrivals.
std::vector<RequestOutcome> recompute_only(const EngineOptions& engine, const RunOptions& run,
                                           std::span<const EngineRequest> requests);

// Fills in what each request did not find of what others had stored before it (unfound_*).
void count_unfound(std::span<const EngineRequest> requests, std::span<RequestOutcome> outcomes);

}  // namespace kvcachefs
