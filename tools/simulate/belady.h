// Belady's MIN over whole requests: what is asked for farthest in the future goes first, the deeper unit of two that are
// asked for together. The units of the request being served may go as well (they pass by), so no policy hits more.
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
  // Requests in turn: all units are read or written.
  void serve(size_t request);
  uint64_t evicted() const { return evicted_; }

 private:
  uint64_t priority(const SimRequest& request, uint32_t i) const;  // the higher, the sooner it goes

  const Workload& workload_;
  uint64_t capacity_;
  uint64_t used_ = 0;
  uint64_t evicted_ = 0;
  std::vector<uint32_t> next_use_;  // of each entry of Workload::units: the next request that has the unit
  std::vector<bool> held_;
  std::vector<uint64_t> current_;   // priority of each unit held
  std::priority_queue<std::pair<uint64_t, uint32_t>> queue_;  // outdated entries stay until they come up
};

}  // namespace kvcachefs
