// Files of the volume that no record names, and what was set aside for them.
#pragma once

#include <cstdint>

#include "store/base/records.h"
#include "store/base/work_queue.h"
#include "store/space/dead_space.h"
#include "store/space/space.h"

namespace kvcachefs {

class Extents;

// Thread-safe. To be used with any lock held: the thread that runs the queue removes the file, which may block.
class Discards {
 public:
  struct Parts {
    Space& space;
    DeadSpace& dead;
    WorkQueue& work;
    Extents& extents;
  };
  explicit Discards(Parts parts) : parts_(parts) {}

  // What was reserved comes back once the file is gone; it counts as reclaimable from now on. A file that cannot be removed is dead space, of
  // as much as was reserved, and tried again with that. (Raw files count as what they take, until they are gone: RawSpace.)
  void remove_later(ExtentId id, PlaceKind kind, uint64_t reserved_bytes = 0);

 private:
  const Parts parts_;
};

}  // namespace kvcachefs
