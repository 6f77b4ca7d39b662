// What the command line of `kvcachefs bench` says, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/units.h"
#include "tools/load/access_style.h"
#include "tools/load/target.h"

namespace kvcachefs {

struct BenchSettings {
  std::vector<std::string> workloads;
  TargetNames targets;
  unsigned rounds = 5;
  std::vector<uint64_t> sizes;  // chunk sizes of restore and store
  std::vector<AccessStyle> styles;
  std::vector<unsigned> threads;     // empty: what each workload does by itself
  uint64_t pass_bytes = 256 * kMiB;  // what one pass of restore, store, scan or raw moves
  uint64_t pool_bytes = 0;           // read buffers; more chunks than fit reuse them
  bool hot_buffers = false;          // one read buffer a thread, as if the engine read into the same place each time
  double scale = 0.125;              // of long-context, contexts, multi-round (bytes) and probe (names)
  double time_scale = 10;            // of multi-round's arrivals
  std::string volume;                // for raw; empty: found from the directory
  std::string restart_command;       // empty: no restart phase
  bool raw_limit = true;
  bool keep_caches = false;  // drop nothing between phases
  uint64_t seed = 0;         // tells the names of one run from another's
};

}  // namespace kvcachefs
