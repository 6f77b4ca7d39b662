// Seals bodies that calls wait for. The bodies of one turn go together, with one sync.
#pragma once

#include <thread>
#include <unordered_set>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/health.h"
#include "store/commit/commit_queue.h"
#include "store/extent/extents.h"
#include "store/object/object.h"
#include "store/writeback/relocator.h"
#include "store/writeback/sealer.h"
#include "store/writeback/urgent_queue.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Thread-safe but for step(), which one thread runs at a time: kvc-urgent between start() and stop(), otherwise the owner's.
class UrgentLane {
 public:
  struct Parts {
    Sealer& sealer;
    Relocator& relocator;
    Extents& extents;
    CommitQueue& commits;
    VolumeRefusals& refusals;
    Health& health;
  };
  explicit UrgentLane(Parts parts) : parts_(parts) {}
  ~UrgentLane() { stop(); }

  Status start();
  void ask_to_stop() { queue_.stop(); }  // stop() without waiting for it
  void stop();
  bool step();  // false: no call waited
  // Answers once the object as it is now is journaled, with all changes of names that were made before; with `sync` also on the medium.
  // Null: the names only. Caller holds no lock.
  void make_durable(ObjectPtr object, bool sync, StatusCompletion done);
  // The same for several objects. Those that can be sealed at once go together; the names follow the bodies in any case. Answers with the
  // first error.
  void make_all_durable(std::vector<ObjectPtr> objects, bool sync, StatusCompletion done);
  // A seal by another thread ended: looks again at calls that wait for it. Caller may hold the lock of an object.
  void requeue_deferred() { queue_.requeue_deferred(); }
  void finish() { parts_.sealer.finish(target_); }  // at the end: closes its pack

 private:
  struct Turn;
  void take(UrgentItem item, Turn& turn);
  void commit(Turn& turn, const std::unordered_set<ObjectId>& failed, const Status& status);
  void defer(UrgentItem item);
  static bool is_journaled(const UrgentItem& item);
  static Status own_error(const Object& object);

  const Parts parts_;
  UrgentQueue queue_;
  PackTarget target_;  // used by step()
  std::thread thread_;
};

}  // namespace kvcachefs
