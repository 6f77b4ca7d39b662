// A timed region: all threads start together, and the clocks cover exactly their work.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/mount_status.h"

namespace kvcachefs {

struct PhaseCost {
  double wall_s = 0;
  double client_cpu_s = 0;             // of the threads, not of the process
  std::optional<double> daemon_cpu_s;  // if a directory is a kvcachefs and its daemon is alive
  StatusNumbers counters;              // changes of its status counters; empty for other directories
};

// Runs body(0) ... body(threads - 1) at once and waits for all; runs none if so many threads cannot be started.
// Returns the first error; it does not stop the other threads, which notice the problem through their own operations or
// check_interrupt(). `directories` name the mounts whose costs are measured and added up.
Result<PhaseCost> run_phase(const std::vector<std::string>& directories, unsigned threads,
                            const std::function<Status(unsigned thread)>& body);
// The same for one directory.
Result<PhaseCost> run_phase(const std::string& directory, unsigned threads,
                            const std::function<Status(unsigned thread)>& body);

}  // namespace kvcachefs
