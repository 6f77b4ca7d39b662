// Many requests on several workers, by their timestamps (open loop) or as fast as the workers go (closed loop).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/phase.h"
#include "tools/load/report.h"
#include "tools/load/request_engine.h"

namespace kvcachefs {

struct RunOptions {
  unsigned workers = 1;
  bool pinned = false;     // worker w serves the requests of instance w only; else the next free one takes the next
  bool open_loop = false;  // a request starts at arrival_s / time_scale, or when a worker is free after that
  double time_scale = 1;   // the trace's clock runs this much faster
};

struct RunResult {
  std::vector<RequestOutcome> outcomes;  // in the order of the requests
  PhaseCost cost;                        // client CPU: of probes, reads and stores only
};

// `on_done` is called after each request, one call at a time, from the workers.
Result<RunResult> run_requests(const std::string& root, const EngineOptions& engine, const RunOptions& run,
                               std::span<const EngineRequest> requests, const std::function<void()>& on_done);

// What the requests would see without any cache: everything computed, same workers, same arrivals.
std::vector<RequestOutcome> recompute_only(const EngineOptions& engine, const RunOptions& run,
                                           std::span<const EngineRequest> requests);

// TTFT and its parts, hits and bytes of one run as samples of column `dir`.
void report_outcomes(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                     std::span<const RequestOutcome> outcomes, uint64_t bytes_per_chunk);

}  // namespace kvcachefs
