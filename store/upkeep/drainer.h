// Lets a thread of upkeep wait until dirty bodies are sealed and journaled, or until pending names are journaled.
#pragma once

#include <atomic>

#include "store/commit/committer.h"
#include "store/writeback/bulk_lane.h"
#include "store/writeback/urgent_lane.h"

namespace kvcachefs {

// Call with no lock held. Blocks on the volume. Where the committer has no thread, lanes and committer take their steps in these calls.
class Drainer {
 public:
  struct Parts {
    BulkLane& bulk;
    UrgentLane& urgent;
    Committer& committer;
  };
  explicit Drainer(Parts parts) : parts_(parts) {}

  // Returns once everything that is finished and dirty now is journaled; `for_room`: as for BulkLane::drain_for_room(). The lanes report
  // errors.
  void drain(bool for_room = false);
  // Returns once the pending names are in the journal. After an error they stay pending; the committer reports it.
  void journal_names() { static_cast<void>(parts_.committer.commit_and_wait({})); }
  // From now on drain() does not wait. Any thread.
  void stop() { stopping_ = true; }

 private:
  const Parts parts_;
  std::atomic<bool> stopping_{false};
};

}  // namespace kvcachefs
