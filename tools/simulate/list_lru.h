// Least recently used, as a cache of blocks implements it: one list, in which the tail of a request counts as older than its head,
// and space is made at each write. So a request longer than the capacity loses its own head. The tree of
// the store's "lru" never evicts the head before the units that follow it.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/simulate/workload.h"

namespace kvcachefs {

class ListLru {
 public:
  ListLru(const Workload& workload, uint64_t capacity_units);

  bool holds(uint32_t unit) const { return next_[unit] != kNone; }
  void serve(size_t request);
  uint64_t evicted() const { return evicted_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  void insert_newest(uint32_t unit);
  void remove(uint32_t unit);

  const Workload& workload_;
  uint64_t capacity_;
  uint64_t used_ = 0;
  uint64_t evicted_ = 0;
  uint32_t head_;                       // a ring through this entry, which is no unit
  std::vector<uint32_t> next_, before_;  // next_ is the older unit
};

}  // namespace kvcachefs
