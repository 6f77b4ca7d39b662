// Several writers of one temporary name: each gets a version of its own, and the Tree chooses which version a caller means. The kernel's
// cache of names can lag behind. An open that may rest on it is answered kStale: the kernel then looks the name up and opens again, once
// (fs/README.md, "three exceptions to POSIX").
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/cache/file_policy.h"
#include "store/object/body_changes.h"
#include "store/object/object.h"
#include "store/requests/new_objects.h"
#include "store/requests/room_for_records.h"
#include "store/tree/stale_opens.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Thread-safe; no state of its own: the Tree has the versions, StaleOpens has the threads that were told to look again. None blocks.
class NameVersions {
 public:
  struct Parts {
    Tree& tree;
    StaleOpens& stale_opens;
    NewObjects& new_objects;
    RoomForRecords& room;
    RecordSpace& records;
    const BodyChanges& changes;
    const MemoryFilePolicy& file_policy;
    const RequestClock& clock;
    std::function<Status(const Object&)> check_may_change;  // as of WriteRequests
  };
  explicit NameVersions(Parts parts) : parts_(std::move(parts)) {}

  // The object for a caller whose open, to write the name anew, was answered kStale. `chosen` is the object that the lookup found. The
  // kernel may look up twice for one open: the second time gets the version made the first time. A peer's file is answered as it is: the
  // lookup answers a stand-in for it, which object_to_open() makes.
  Result<ObjectPtr> version_to_write(Tree::Write& tree, ObjectId parent, std::string_view name, ObjectId chosen, const Caller& caller);

  // Caller holds no lock:
  // The object with this id. If it is the stand-in that the caller's last lookup answered for a peer's file, and the caller writes it anew, it is
  // made now and gets the name. So no file is lost if the caller does something else instead.
  Result<ObjectPtr> object_to_open(ObjectId id, const OpenRequest& request, const Caller& caller);
  // `known`; but of a stand-in that is not made yet, the attributes of the file that it stands for: the kernel may ask for them before the open.
  Result<Stat> stat_or_stand_in(ObjectId id, Result<Stat> known) const;
  // kStale if the nodeid that the kernel opens is not, or no longer, what the name means to this caller: the kernel then looks the
  // name up again and opens the result. It does so once, so no open is told twice. An open of an unknown thread is told only if a
  // second lookup is sure to find another object. The caller lets go of `kept` once the open is done.
  Status check_stale(const ObjectPtr& object, const OpenRequest& request, const Caller& caller, ObjectPtr& kept);
  // For an object that was looked up and is gone when it is opened. kStale: fs/ answers ESTALE, and the kernel looks again. kNotFound: it has.
  std::unexpected<Error> gone_before_open(ObjectId id, Error error, const OpenRequest& request, const Caller& caller);
  // As in store.h.
  Result<Stat> open_directory(ObjectId id, const Caller& caller);
  void let_go(const StaleOpens::Released& released);
  // The caller's call is over: its next open repeats none that was answered kStale.
  void end_repetition(const Caller& caller);
  // As in store.h.
  bool told_stale(const OpenRequest& request, const Caller& caller, ObjectId object);
  bool may_look_again(const Caller& caller, bool by_name, const std::optional<OpenRequest>& open);

 private:
  void take_over(Object& object, const Caller& caller) const;
  bool tell_stale(const OpenRequest& request, ObjectId id, const Caller& caller);
  Result<ObjectPtr> to_be_written(const ObjectPtr& object, ObjectId id, const Caller& caller);
  Result<ObjectPtr> new_version(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object, const Caller& caller);
  Result<ObjectPtr> make_stand_in(const StaleOpens::StandIn& asked, const Caller& caller);
  Status add_version(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object, const ObjectPtr& fresh);
  Status put_in_place(Tree::Write& tree, const StaleOpens::StandIn& asked, const ObjectPtr& fresh, const Caller& caller);

  const Parts parts_;
};

}  // namespace kvcachefs
