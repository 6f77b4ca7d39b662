// Makes and removes entries of directories, and links, for clients; the Tree makes the change of names. A durable answer waits for the
// committer (make_durable) after the change was made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "store/api/counters.h"
#include "store/api/live_options.h"
#include "store/api/probe_counts.h"
#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/cache/file_policy.h"
#include "store/chain/access_tracker.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/object/handle.h"
#include "store/object/object.h"
#include "store/requests/attribute_requests.h"
#include "store/requests/name_versions.h"
#include "store/requests/new_objects.h"
#include "store/requests/room_for_records.h"
#include "store/tree/tree.h"
#include "store/writeback/urgent_lane.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Thread-safe; no state of its own. Callers hold no lock; no call blocks.
class NameRequests {
 public:
  struct Parts {
    Tree& tree;
    NameVersions& versions;
    AttributeRequests& attributes;
    NewObjects& new_objects;
    RoomForRecords& room;
    const RecordSpace& records;
    AccessTracker& accesses;
    const BodyChanges& changes;
    DirtyQueue& dirty;
    const MemoryFilePolicy& file_policy;
    const VolumeRefusals& refusals;
    UrgentLane& urgent;
    ProbeCounts& probes;
    Counters& counters;
    const LiveOptions& options;
    const RequestClock& clock;
    bool read_only;
  };
  explicit NameRequests(Parts parts) : parts_(parts) {}

  // As in store.h.
  Result<Stat> make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller);
  Result<Stat> make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev, const Caller& caller);
  Result<Stat> make_symlink(ObjectId parent, std::string_view name, std::string_view target, const Caller& caller);
  Result<std::string> read_symlink(ObjectId id);
  Result<std::pair<Stat, Handle*>> create(ObjectId parent, std::string_view name, uint32_t mode, const OpenRequest& request,
                                          const Caller& caller);
  void link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done);
  void unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done);
  void remove_directory(ObjectId parent, std::string_view name, StatusCompletion done);

 private:
  Result<Stat> new_directory_entry(ObjectId parent, std::string_view name, const ObjectPtr& object);
  Result<Stat> stat(ObjectId id) { return parts_.attributes.stat(id); }

  const Parts parts_;
};

}  // namespace kvcachefs
