// Removal of files on the volume that no record names, and of the space reserved for them.
#pragma once

#include <cstdint>

#include "store/base/records.h"
#include "store/base/work_queue.h"
#include "store/space/dead_space.h"
#include "store/space/space.h"

namespace kvcachefs {

class Extents;

// Thread-safe. May be called with any lock held: the thread that runs the queue removes the file, which may block.
class Discards {
 public:
  struct Parts {
    Space& space;
    DeadSpace& dead;
    WorkQueue& work;
    Extents& extents;
  };
  explicit Discards(Parts parts) : parts_(parts) {}

  // Removes the file later. The reservation is released once the file is gone; from now on it counts as reclaimable. A file that cannot be removed
  // becomes dead space of that size, and is tried again as such. (Raw files count with their blocks until they are gone: RawSpace.)
  void remove_later(ExtentId id, PlaceKind kind, uint64_t reserved_bytes = 0);

 private:
  const Parts parts_;
};

}  // namespace kvcachefs
