// Renames for clients: prepares the body first, and makes the result durable. The Tree makes the change of names.
#pragma once

#include <string_view>

#include "store/api/live_options.h"
#include "store/api/probe_counts.h"
#include "store/api/request_types.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/object/object.h"
#include "store/requests/write_requests.h"
#include "store/space/space_waiters.h"
#include "store/tree/rename.h"
#include "store/tree/tree.h"
#include "store/writeback/urgent_lane.h"

namespace kvcachefs {

// Thread-safe; no state of its own. Callers hold no lock; no call blocks.
class RenameRequests {
 public:
  struct Parts {
    Tree& tree;
    const WriteRequests& writes;
    const BodyChanges& changes;
    DirtyQueue& dirty;
    UrgentLane& urgent;
    SpaceWaiters& space_waiters;
    ProbeCounts& probes;
    const LiveOptions& options;
    bool read_only;
  };
  explicit RenameRequests(Parts parts) : parts_(parts) {}

  // As in store.h. Waits for room, without a thread, if the source has to be written anew.
  void rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name, RenameMode mode,
              const Caller& caller, StatusCompletion done);

 private:
  struct Attempt {  // of a rename
    Rename asked;
    bool lacks_room = false;
    ObjectId waited_for{};  // the source that lacked room before
  };
  Status rename_now(Attempt& attempt);
  Status prepare_rename(Tree::Write&, Attempt& attempt);
  ObjectPtr object_to_rename(ObjectId parent, std::string_view name, const Caller& caller);

  const Parts parts_;
};

}  // namespace kvcachefs
