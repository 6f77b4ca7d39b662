// Seals what is finished, every `flush_interval_ms`, or at once under memory pressure; spills where nothing is. Bodies of one prefix
// lie next to each other, as far as probes and creates told the order.
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
#include "store/object/dirty_queue.h"
#include "store/tree/tree.h"
#include "store/writeback/relocator.h"
#include "store/writeback/sealer.h"
#include "store/writeback/spiller.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Thread-safe but for step(), which one thread runs at a time: kvc-bulk between start() and stop(), else the owner's. mutex_ is a leaf.
class BulkLane {
 public:
  struct Parts {
    DirtyQueue& dirty;
    Tree& tree;
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

  void start();
  void ask_to_stop();  // stop() without waiting for it
  void stop();
  // One turn; with `force` also what is open for writing and was not silent for a while. True: it wrote something, and the next turn
  // may find more.
  bool step(bool force);
  // Answers once everything that is finished and dirty now is journaled; with `sync` on the medium, and said to be.
  void drain(bool sync, StatusCompletion done);
  // The same for a volume that is full: what fallocate promised room to, for another version, is not sealed where that would end the
  // promise, and not waited for. To seal it gives nothing back.
  void drain_for_room(StatusCompletion done);
  void finish() { parts_.sealer.finish(target_); }  // at the end: its pack takes no more

 private:
  struct Drain {
    bool sync = false;
    bool for_room = false;
    StatusCompletion done;
    bool listed = false;
    int failed_commits = 0;  // while it waited
    std::vector<std::pair<ObjectPtr, uint64_t>> bodies;  // to be journaled before the answer, with their content_version
  };
  struct Remaining {
    bool some = false;     // to be looked at after an interval
    bool at_once = false;  // ready, but more than fits one batch
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
  PackTarget target_;  // step()'s
  std::atomic<bool> stopping_{false};
  LeafMutex mutex_;
  std::optional<Error> commit_error_;  // of the last commit of the lane that failed
  std::vector<Drain> drains_;          // answered once what they list is journaled
  std::thread thread_;
};

}  // namespace kvcachefs
