// Serves a workload with a policy in front of a store of limited capacity, and counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/simulate/extent_model.h"
#include "tools/simulate/workload.h"

namespace kvcachefs {

enum class Restart : uint8_t { kNone, kTables, kNames, kLost };

struct SimSettings {
  std::string policy;  // of store/evict, or one of simulated_only()
  uint64_t capacity_units = 1;
  uint64_t seed = 1;
  // Links between units are learned from the order of probes, as in a mounted file system; otherwise they are known.
  bool learn_links = false;
  double lost_boundaries = 0;  // the part of requests whose beginning cannot be seen from a pause or a new thread
  double cut_requests = 0;     // the part of requests that seem to begin anew somewhere inside
  size_t interleave = 1;       // this many requests have their units mixed, in one thread
  Restart restart = Restart::kNone;  // at half of the time
  uint32_t windows = 0;              // number of equal parts of the requests with separate figures
  ExtentSettings extents;
  double skip = 0;             // requests of this first part of the time are served, but not counted
  uint32_t count_source = UINT32_MAX;  // only requests of this source are counted
  std::function<Status(size_t requests_done)> progress;  // called from time to time; an error ends the run
};

struct SimResult {
  uint64_t requests = 0;
  uint64_t units = 0, unit_hits = 0, prefix_hits = 0;
  uint64_t tokens = 0, hit_tokens = 0;
  uint64_t evicted_units = 0;
  double ns_per_touch = 0;      // time in the policy for each unit read or written
  double bytes_per_unit = 0;    // memory of the policy at the end, beyond that of an empty one
  bool by_recency = false;      // links proved wrong, so the score was recency at the end
  double wrong_links = 0;       // the part of learned links that differ from the trace's
  std::vector<double> window_ratios;
  ExtentCounts extents;

  double hit_ratio() const { return units == 0 ? 0 : static_cast<double>(unit_hits) / static_cast<double>(units); }
  double prefix_hit_ratio() const {
    return units == 0 ? 0 : static_cast<double>(prefix_hits) / static_cast<double>(units);
  }
};

// True for policies that exist only here: "min" is Belady's MIN, and "lru-list" a plain cache of blocks, see list_lru.h. They ignore all
// settings except the capacity and what is counted.
bool simulated_only(const std::string& policy);

Result<SimResult> simulate(const Workload& workload, const SimSettings& settings);

}  // namespace kvcachefs
