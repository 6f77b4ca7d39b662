// Seals finished bodies every `flush_interval_ms`, or at once under memory pressure; spills a body if none is finished. Bodies of one
// prefix lie next to each other, as far as probes and creates told the order.
#pragma once

#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "store/api/live_options.h"
#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/base/health.h"
#include "store/base/mutex.h"
#include "store/cache/body_cache.h"
#include "store/chain/access_tracker.h"
#include "store/commit/commit_queue.h"
#include "store/memory/pool.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/tree/tree.h"
#include "store/writeback/relocator.h"
#include "store/writeback/sealer.h"
#include "store/writeback/spiller.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Thread-safe but for step(), which one thread runs at a time: kvc-bulk between start() and stop(), otherwise the owner's. mutex_ is a leaf.
class BulkLane {
 public:
  struct Parts {
    DirtyQueue& dirty;
    Tree& tree;
    const BodyChanges& changes;
    AccessTracker& accesses;
    Sealer& sealer;
    Spiller& spiller;
    Relocator& relocator;
    CommitQueue& commits;
    VolumeRefusals& refusals;
    const MemoryPool& pool;
    const BodyCache& cache;
    Health& health;
    const LiveOptions& options;
    const Clock& clock;
    bool background;  // it has a thread, which may pause
  };
  explicit BulkLane(Parts parts) : parts_(parts) {}
  ~BulkLane() { stop(); }

  Status start();
  void ask_to_stop();  // stop() without waiting for it
  void stop();
  // Runs one turn; with `force` also seals bodies that are open for writing and were written a moment ago. True: it wrote something, and the
  // next turn may find more.
  bool step(bool force);
  // Answers once everything that is finished and dirty now is journaled; with `sync`, synced and covered by a mark.
  void drain(bool sync, StatusCompletion done);
  // The same for a full volume: a body for whose next version fallocate promised room is neither sealed, if that would end the promise,
  // nor waited for. Sealing it gives no space back.
  void drain_for_room(StatusCompletion done);
  void finish() { parts_.sealer.finish(target_); }  // at the end: closes its pack

 private:
  struct Drain {
    bool sync = false;
    bool for_room = false;
    StatusCompletion done;
    bool listed = false;
    int failed_commits = 0;  // since it waits
    std::vector<std::pair<ObjectPtr, uint64_t>> bodies;  // to be journaled before the answer, with their content_version
  };
  struct Remaining {
    bool some = false;     // there are bodies to look at after an interval
    bool at_once = false;  // there are ready bodies that did not fit in the batch
    bool commits = false;  // a commit was added: it takes all names and attributes along
  };
  void run();
  bool memory_is_wanted() const { return parts_.pool.under_pressure() || !parts_.cache.nobody_waits(); }
  std::vector<Drain> take_drains();
  void add(Drain drain);
  bool seal_finished(bool force, Sealer::Promise promise, Remaining& remaining, Status& status);
  bool records_wait() const;
  void commit_pending_names(Remaining& remaining);
  bool settle_drains(std::vector<Drain>& drains, const Status& status);
  std::vector<Snapshot> choose(bool force, Sealer::Promise promise, Remaining& remaining);
  std::vector<std::pair<ObjectPtr, uint64_t>> finished_dirty_bodies(bool for_room);

  const Parts parts_;
  PackTarget target_;  // used by step()
  std::atomic<bool> stopping_{false};
  LeafMutex mutex_;
  std::optional<Error> commit_error_;  // of the lane's last failed commit
  std::vector<Drain> drains_;          // each is answered once the bodies that it lists are journaled
  std::thread thread_;
};

}  // namespace kvcachefs
