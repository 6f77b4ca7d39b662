// Bodies that are too large for memory, or have to make room for others: what was written of them goes to a file of its own on the
// volume before they are finished. Their seal goes on in that file.
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

// No state of its own; used by one thread, the bulk lane. Blocks on the volume; called with no lock held.
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

  // Writes out the largest body that can be, or a part of it. False: there is none, memory is about to come back by a commit, or the
  // volume did not take it.
  bool spill_one();

 private:
  Status spill(const ObjectPtr& object);

  const Parts parts_;
};

}  // namespace kvcachefs
