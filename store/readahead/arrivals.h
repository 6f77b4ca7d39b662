// Bodies that are read ahead and came with one read of the volume.
#pragma once

#include <cstdint>
#include <vector>

#include "store/chain/access_tracker.h"
#include "store/object/object.h"

namespace kvcachefs {

// The tracker, whose lock clients want, is told of them together, when this is destroyed. On the stack of the thread that takes in the
// read: one made further up the stack adds to it.
class Arrivals {
 public:
  Arrivals(AccessTracker& accesses, int64_t arrived_ns);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  void add(AccessTracker::Loaded body, ObjectPtr object);

 private:
  AccessTracker& accesses_;
  const int64_t arrived_ns_;
  Arrivals* const shadowed_;  // on the same stack, perhaps of another store
  Arrivals* const outer_;     // the same, if it is of the same store
  std::vector<AccessTracker::Loaded> bodies_;
  std::vector<ObjectPtr> objects_;
};

}  // namespace kvcachefs
