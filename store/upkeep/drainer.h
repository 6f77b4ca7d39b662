// For a thread of upkeep that has to wait: until what is dirty is sealed and journaled, or the names are.
#pragma once

#include <atomic>

#include "store/commit/committer.h"
#include "store/writeback/bulk_lane.h"
#include "store/writeback/urgent_lane.h"

namespace kvcachefs {

// No lock held. Blocks on the volume. Where the committer has no thread, all of them take their steps here.
class Drainer {
 public:
  struct Parts {
    BulkLane& bulk;
    UrgentLane& urgent;
    Committer& committer;
  };
  explicit Drainer(Parts parts) : parts_(parts) {}

  // What is finished and dirty now is journaled when this returns; `for_room`: as for BulkLane::drain_for_room(). An error is the
  // lanes' to tell.
  void drain(bool for_room = false);
  // What waits of names is in the journal when this returns, or stays pending: an error is the committer's to tell.
  void journal_names() { static_cast<void>(parts_.committer.commit_and_wait({})); }
  // From now on drain() does not wait. Any thread.
  void stop() { stopping_ = true; }

 private:
  const Parts parts_;
  std::atomic<bool> stopping_{false};
};

}  // namespace kvcachefs
