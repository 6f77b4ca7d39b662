// The workload of a simulation: requests of dense unit numbers with their times, made from one or more traces.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/replay/trace.h"

namespace kvcachefs {

struct SimRequest {
  int64_t time_ms = 0;
  size_t first = 0;           // of Workload::units
  uint32_t units = 0;
  uint32_t last_tokens = 0;   // tokens of the last unit, which may be less than full
  uint32_t source = 0;        // which of the joined workloads it comes from
};

// Unit numbers count from 0 in the order of their first use. The same number always has the same predecessor.
struct Workload {
  std::string name;
  uint64_t unit_tokens = 0;
  std::vector<SimRequest> requests;  // by time
  std::vector<uint32_t> units;
  uint32_t distinct_units = 0;

  std::span<const uint32_t> of(const SimRequest& request) const {
    return std::span(units).subspan(request.first, request.units);
  }
  uint64_t tokens(const SimRequest& request) const {
    return request.units == 0 ? 0 : (request.units - 1) * unit_tokens + request.last_tokens;
  }
};

struct WorkloadSettings {
  uint64_t chunk_tokens = 0;        // 0: the trace's blocks
  double session_spread_s = 14400;  // sessions start uniformly within it
  uint64_t seed = 1;
};

// The requests as seen by an engine with such chunks. The chunk at the end of a request that its input does not fill is also a
// unit if the trace itself has a block for it.
Result<Workload> make_workload(const Trace& trace, const std::string& name, const WorkloadSettings& settings);

enum class Join : uint8_t { kBeside, kAfter };
// All at once, or one after another, as one workload: of different units, and all of the same chunk size.
Result<Workload> join(std::span<const Workload> parts, Join how);

// A batch job beside the workload: prompts of 10 to 40 units that are never asked for again, `units` of them in all, spread over
// the third quarter of the time. Its requests have `source` 1, the others 0.
Workload with_scan(const Workload& workload, uint64_t units);

}  // namespace kvcachefs
