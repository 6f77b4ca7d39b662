// A timed region: so many threads start together, and the clocks cover exactly what they do.
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
  std::optional<double> daemon_cpu_s;  // where a directory is a kvcachefs and its daemon is alive
  StatusNumbers counters;              // what its status counted meanwhile; empty elsewhere
};

// Runs body(0) ... body(threads - 1) at once and waits for all; where not so many threads can be started, runs none.
// The first error is returned; it does not stop the other threads, which notice it through their own operations or
// check_interrupt(). `directories` name the mounts to account to, whose costs are added up.
Result<PhaseCost> run_phase(const std::vector<std::string>& directories, unsigned threads,
                            const std::function<Status(unsigned thread)>& body);
// The same for one directory.
Result<PhaseCost> run_phase(const std::string& directory, unsigned threads,
                            const std::function<Status(unsigned thread)>& body);

}  // namespace kvcachefs
