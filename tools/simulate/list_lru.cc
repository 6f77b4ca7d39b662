#include "tools/simulate/list_lru.h"

namespace kvcachefs {

ListLru::ListLru(const Workload& workload, uint64_t capacity_units)
    : workload_(workload),
      capacity_(capacity_units),
      head_(workload.distinct_units),
      next_(workload.distinct_units + size_t{1}, kNone),
      before_(workload.distinct_units + size_t{1}, kNone) {
  next_[head_] = before_[head_] = head_;
}

void ListLru::insert_newest(uint32_t unit) {
  next_[unit] = next_[head_];
  before_[unit] = head_;
  before_[next_[head_]] = unit;
  next_[head_] = unit;
  ++used_;
}

void ListLru::remove(uint32_t unit) {
  next_[before_[unit]] = next_[unit];
  before_[next_[unit]] = before_[unit];
  next_[unit] = kNone;
  --used_;
}

void ListLru::serve(size_t number) {
  const auto units = workload_.of(workload_.requests[number]);
  for (const uint32_t unit : units) {
    if (holds(unit)) {
      remove(unit);
    } else if (used_ >= capacity_) {
      remove(before_[head_]);
      ++evicted_;
    }
    insert_newest(unit);
  }
  for (size_t i = units.size(); i-- > 0;) {
    if (!holds(units[i])) continue;
    remove(units[i]);
    insert_newest(units[i]);
  }
}

}  // namespace kvcachefs
