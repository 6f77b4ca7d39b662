// The command line of `kvcachefs bench`, checked.
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
  std::vector<unsigned> threads;     // empty: each workload's own default
  uint64_t pass_bytes = 256 * kMiB;  // bytes that one pass of restore, store, scan or raw moves
  uint64_t pool_bytes = 0;           // read buffers; more chunks than fit reuse them
  bool hot_buffers = false;          // one read buffer per thread, as if the engine always read into the same place
  double scale = 0.125;              // of long-context, contexts, multi-round (bytes) and probe (names)
  double time_scale = 10;            // of multi-round's arrivals
  std::string volume;                // for raw; empty: found from the directory
  std::string restart_command;       // empty: no restart phase
  bool raw_limit = true;
  bool keep_caches = false;  // drop nothing between phases
  uint64_t seed = 0;         // makes the names of one run differ from another's
};

}  // namespace kvcachefs
