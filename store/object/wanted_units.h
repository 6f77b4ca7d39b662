// Keeps the units that a request reads from being evicted.
#pragma once

#include <cstddef>
#include <utility>

#include "store/object/object.h"

namespace kvcachefs {

// Keeps units of a body in RAM until release(). A request holds units from the moment it has the memory for those that it lacks: from
// then on it waits for the volume only. A request that waits for memory holds none: two of them, each holding what the other needs,
// would wait for each other. Used by one thread at a time.
class WantedUnits {
 public:
  WantedUnits() = default;
  ~WantedUnits() { release(); }
  WantedUnits(const WantedUnits&) = delete;
  WantedUnits& operator=(const WantedUnits&) = delete;
  // Caller holds the lock of the body, and has released what was held before.
  void hold(const ObjectPtr& of, size_t first, size_t last) {
    object_ = of;
    range_ = {first, last};
    object_->wanted.push_back(range_);
  }
  // Caller does not hold the lock of the body.
  void release();

 private:
  ObjectPtr object_;
  std::pair<size_t, size_t> range_;
};

}  // namespace kvcachefs
