// What a Tree needs beside an index and a clock, for its tests: nothing blocks, nothing is journaled.
#pragma once

#include "store/base/units.h"
#include "store/base/work_queue.h"
#include "store/chain/access_tracker.h"
#include "store/extent/extents.h"
#include "store/memory/pool.h"
#include "store/object/dirty_queue.h"
#include "store/space/discards.h"
#include "store/space/record_space.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs::testing {

// Use as a base of a fixture, or as a member declared before the Tree.
struct TreeParts {
  Tree::Parts of(Index& index, const Clock& clock, bool lingers = true, std::string node = {}, bool shared = false, PeerLeases* leases = nullptr) {
    return {index, clock, accesses, space, records, discards, dirty, pool, lingers, std::move(node), shared, leases};
  }

  Space space;
  DeadSpace dead{space};
  RecordSpace records{space, 64 * kMiB};
  AccessTracker accesses{[](ObjectId) { return std::nullopt; }, 0, 0};
  Wakeup wakeup;
  WorkQueue work{wakeup};
  Extents extents{nullptr, {}, 1};
  Discards discards{{space, dead, work, extents}};
  DirtyQueue dirty;
  MemoryPool pool{64 * kMiB};
};

}  // namespace kvcachefs::testing
