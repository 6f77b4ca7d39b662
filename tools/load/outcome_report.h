// What the requests of a run saw, in the report.
#pragma once

#include <span>
#include <string>

#include "tools/load/report.h"
#include "tools/load/request_engine.h"

namespace kvcachefs {

// TTFT and its parts, hits and bytes of one run as samples of column `dir`.
void report_outcomes(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                     std::span<const RequestOutcome> outcomes, uint64_t bytes_per_chunk);

// The same for each of several engines by itself, as scenario/node1, scenario/node2, ...
void report_engines(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                    std::span<const EngineRequest> requests, std::span<const RequestOutcome> outcomes, unsigned engines,
                    uint64_t bytes_per_chunk);

}  // namespace kvcachefs
