// Reads and changes attributes and extended attributes for clients; pins objects; describes an object.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/chain/access_tracker.h"
#include "store/commit/unsaved_read_times.h"
#include "store/extent/extents.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/object/handle.h"
#include "store/object/object.h"
#include "store/requests/in_place_changes.h"
#include "store/requests/open_files.h"
#include "store/requests/room_for_records.h"
#include "store/requests/write_requests.h"
#include "store/space/record_space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Thread-safe; no state of its own. Callers hold no lock. Only stat() and changes of size of raw files block.
class AttributeRequests {
 public:
  using Facts = std::vector<std::pair<std::string, std::string>>;
  // Facts about objects from rooms that this one may not include.
  struct Known {
    std::function<Status(const Object& object, bool pinned)> pin;         // the object is locked, as for is_pinned
    std::function<bool(ObjectId id)> is_pinned;                           // itself, or by a directory above it
    // Adds the facts that keep the object from eviction.
    std::function<void(const Tree::View& tree, const ObjectPtr& object, uint32_t thread_id, Facts& facts)> describe_keeping;
    std::function<std::optional<std::string>(ObjectId id)> owner;  // its node; no value: the volume has only one node
  };
  struct Parts {
    Tree& tree;
    OpenFiles& open_files;
    WriteRequests& writes;
    InPlaceChanges& in_place;
    AccessTracker& accesses;
    const Extents& extents;
    RoomForRecords& room;
    RecordSpace& records;
    const BodyChanges& changes;
    DirtyQueue& dirty;
    UnsavedReadTimes& unsaved_reads;
    const RequestClock& clock;
    std::function<Status(const Object&)> check_may_change;  // as of WriteRequests
    Known known;
    bool read_only;
  };
  explicit AttributeRequests(Parts parts) : parts_(std::move(parts)) {}

  // As in store.h.
  Result<Stat> stat(ObjectId id);
  void set_attributes(ObjectId id, Handle* handle, const SetAttributes& change, const Caller& caller, Completion<Stat> done);
  bool drop_privileges(Handle* handle, const std::function<bool(uint32_t)>& in_group);
  Result<std::string> get_xattr(ObjectId id, std::string_view name);
  Status set_xattr(ObjectId id, std::string_view name, std::string_view value, XattrMode mode);
  Status remove_xattr(ObjectId id, std::string_view name);
  Result<std::vector<std::string>> list_xattrs(ObjectId id);
  Status set_pinned(ObjectId id, bool pinned);
  Result<Facts> describe(ObjectId id, const Caller& caller);

 private:
  Result<Stat> apply_attributes(ObjectId id, const SetAttributes& change);
  Status change_xattrs(ObjectId id, const std::function<Status(const ObjectPtr&)>& change);
  Status set_xattr_of(const ObjectPtr& object, std::string_view name, std::string_view value, XattrMode mode);

  const Parts parts_;
};

}  // namespace kvcachefs
