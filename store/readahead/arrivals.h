// Collects the bodies that were read ahead and arrived with one read of the volume.
#pragma once

#include <cstdint>
#include <vector>

#include "store/chain/access_tracker.h"
#include "store/object/object.h"

namespace kvcachefs {

// The destructor reports all bodies to the tracker in one call, because clients want the tracker's lock. An instance lies on the stack of
// the thread that takes in the read; a second instance made deeper on the same stack adds its bodies to the first.
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
  Arrivals* const shadowed_;  // the next instance further out on this stack; may be of another store
  Arrivals* const outer_;     // shadowed_, if it is of the same store
  std::vector<AccessTracker::Loaded> bodies_;
  std::vector<ObjectPtr> objects_;
};

}  // namespace kvcachefs
