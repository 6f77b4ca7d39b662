// Reports the outcomes of the requests of a run.
#pragma once

#include <span>
#include <string>

#include "tools/load/report.h"
#include "tools/load/request_engine.h"

namespace kvcachefs {

// Adds TTFT and its parts, hits and bytes of one run as samples of column `dir`.
void report_outcomes(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                     std::span<const RequestOutcome> outcomes, uint64_t bytes_per_chunk);

// Adds the same for each of several engines, as scenario/node1, scenario/node2, ...
void report_engines(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                    std::span<const EngineRequest> requests, std::span<const RequestOutcome> outcomes, unsigned engines,
                    uint64_t bytes_per_chunk);

}  // namespace kvcachefs
