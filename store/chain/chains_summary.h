// The present state of read-ahead, for people: counts, and the runs that are read ahead. Bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/base/types.h"
#include "store/chain/read_run.h"

namespace kvcachefs {

struct RunSummary {
  LoadReason reason = LoadReason::kSuccessor;
  uint32_t readers = 0;
  uint64_t arrivals = 0;         // opens of expected objects
  ObjectId next;                 // the first one that no reader has opened
  uint64_t expected_objects = 0, expected_bytes = 0;  // from `next` on, as far as the chain was followed
  uint64_t window_bytes = 0;     // the most that may be ready or in flight now
  uint64_t planned_bytes = 0;    // of the expected bytes: ready or in flight
  uint64_t ready_bytes = 0, in_flight_bytes = 0;  // of these, within the next kMostLookedAt objects
  int64_t idle_ns = 0;           // since the last reader or probe

  static constexpr size_t kMostLookedAt = 512;
};

struct ChainsSummary {
  double bandwidth_bytes_per_s = 0;
  int64_t base_latency_ns = 0, mean_latency_ns = 0;
  size_t streams = 0, most_streams = 0;
  size_t announced_names = 0;
  size_t rows = 0, unsaved_rows = 0;  // of successors, in RAM
  size_t live_runs = 0;
  std::vector<RunSummary> runs;  // at most kMostRuns, the last active first

  static constexpr size_t kMostRuns = 32;
};

std::string to_text(const ChainsSummary& summary);

}  // namespace kvcachefs
