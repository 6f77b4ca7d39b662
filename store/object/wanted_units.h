// Units that are not given up under a request that reads them.
#pragma once

#include <cstddef>
#include <utility>

#include "store/object/object.h"

namespace kvcachefs {

// Keeps units of a body in RAM until they are let go of. A request holds them from when it was given the memory for those that it
// lacks: from then on it waits for the volume alone. A request that waits for memory holds none; or two of them, each with what
// the other needs, would wait for each other. Used by one thread at a time.
class WantedUnits {
 public:
  WantedUnits() = default;
  ~WantedUnits() { release(); }
  WantedUnits(const WantedUnits&) = delete;
  WantedUnits& operator=(const WantedUnits&) = delete;
  // The lock of the body is held. What was held before has been let go of.
  void hold(const ObjectPtr& of, size_t first, size_t last) {
    object_ = of;
    range_ = {first, last};
    object_->wanted.push_back(range_);
  }
  // The lock of the body is not held.
  void release();

 private:
  ObjectPtr object_;
  std::pair<size_t, size_t> range_;
};

}  // namespace kvcachefs
