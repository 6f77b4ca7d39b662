// Belady's MIN over whole requests: the unit that is used farthest in the future is evicted first; of two units of the same
// future request, the deeper one. Units of the request being served may be evicted as well (they pass by), so no policy hits more.
#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "tools/simulate/workload.h"

namespace kvcachefs {

class Belady {
 public:
  Belady(const Workload& workload, uint64_t capacity_units);

  bool holds(uint32_t unit) const { return held_[unit]; }
  // Serves the next request: all its units are read or written.
  void serve(size_t request);
  uint64_t evicted() const { return evicted_; }

 private:
  uint64_t priority(const SimRequest& request, uint32_t i) const;  // the unit with the highest is evicted first

  const Workload& workload_;
  uint64_t capacity_;
  uint64_t used_ = 0;
  uint64_t evicted_ = 0;
  std::vector<uint32_t> next_use_;  // for each entry of Workload::units: the next request with that unit
  std::vector<bool> held_;
  std::vector<uint64_t> current_;   // priority of each unit held
  std::priority_queue<std::pair<uint64_t, uint32_t>> queue_;  // outdated entries stay until they come up
};

}  // namespace kvcachefs
