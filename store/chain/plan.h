// The values that go into the planner and come out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/base/types.h"
#include "store/chain/read_run.h"

namespace kvcachefs {

struct PlannerOptions {
  uint64_t ahead_max_bytes = uint64_t{256} << 20;  // option prefetch_ahead: the limit for one run, ready or in flight
  uint64_t total_max_bytes = uint64_t{1} << 30;    // the limit for all runs together; the store sets a share of `memory`
  uint64_t ahead_min_bytes = uint64_t{8} << 20;    // a run's first window: several large reads
  size_t max_runs = 256;
  size_t max_notes = 65536;  // objects remembered as expected or recently read
  size_t max_loads_per_plan = 256;
};

struct PlannedLoad {
  ObjectId id;
  uint32_t priority = 0;  // lower is more urgent: objects between the reader and this one; guesses rank last
  LoadReason reason = LoadReason::kSuccessor;
  uint32_t run = 0;  // loads of one run are neighbours of one chain
  uint64_t bytes = 0;  // estimate
  bool guess = false;  // no reader has joined the run yet
};
struct Plan {
  std::vector<PlannedLoad> loads;  // most urgent first; neighbours of a chain in chain order
  std::vector<ObjectId> cancels;   // planned earlier, not loaded yet, no longer wanted
  std::vector<ObjectId> again;     // in RAM, read before, and expected to be read again
};

enum class SkipReason : uint8_t {
  kResident,   // already in RAM
  kLeftToKernel,  // its readers are passed through, and find it in the page cache
  kOnlyOpened,  // its readers read the volume directly, past every cache: it was opened ahead, no byte was read
  kGone,       // the object is deleted: forget it
  kNoRoom,     // RAM is full
  kFailed,     // it cannot be read ahead now (volume error, empty, too large); it stays in the chain
  kCancelled,  // as requested
};

}  // namespace kvcachefs
