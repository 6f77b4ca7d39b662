// Spills bodies that are too large for memory, or have to make room for others: their bytes go to a file of its own on the volume before
// they are finished. Their seal goes on in that file.
#pragma once

#include "store/api/counters.h"
#include "store/base/health.h"
#include "store/extent/extents.h"
#include "store/memory/pool.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/tree/tree.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// No state of its own; used by one thread, the bulk lane. Blocks on the volume. Caller holds no lock.
class Spiller {
 public:
  struct Parts {
    DirtyQueue& dirty;
    Tree& tree;
    BodyChanges& changes;
    Extents& extents;
    const MemoryPool& pool;
    VolumeRefusals& refusals;
    Health& health;
    Counters& counters;
  };
  explicit Spiller(Parts parts) : parts_(parts) {}

  // Writes out the largest body that can be spilled, or a part of it. False: there is none, a commit is about to give memory back, or
  // the volume did not take the bytes.
  bool spill_one();

 private:
  Status spill(const ObjectPtr& object);

  const Parts parts_;
};

}  // namespace kvcachefs
