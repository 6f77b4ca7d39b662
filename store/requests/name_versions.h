// Several writers of one temporary name: each gets a version of its own (which of them is meant is chosen by the Tree). What the
// kernel knows about names can lag behind; an open that may rest on that is answered kStale, which makes the kernel look the name
// up and open again, once (fs/README.md, "the two exceptions").
#pragma once

#include <functional>
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

// Thread-safe; no state of its own: versions are of the Tree, and who was told to look again is with StaleOpens. None blocks.
class NameVersions {
 public:
  struct Parts {
    Tree& tree;
    StaleOpens& stale_opens;
    NewObjects& new_objects;
    RoomForRecords& room;
    const BodyChanges& changes;
    const MemoryFilePolicy& file_policy;
    const RequestClock& clock;
    std::function<Status(const Object&)> check_may_change;  // as of WriteRequests
  };
  explicit NameVersions(Parts parts) : parts_(std::move(parts)) {}

  // What the caller, whose open to write the name anew was answered kStale, gets to open. `chosen` is what a lookup found. The kernel
  // may look up twice for one open: the version made the first time is answered the second time. `refused`: the object that the open
  // named.
  Result<ObjectPtr> version_to_write(Tree::Write& tree, ObjectId parent, std::string_view name, ObjectId chosen, ObjectId refused,
                                     const Caller& caller);

  // With no lock held:
  // kStale when the nodeid the kernel opens is not, or no longer, what the name means to this caller: it looks the name up
  // again and opens what it finds. The kernel does so once, so no open is told twice; nor one whose thread is not known, but
  // where looking again finds another object for sure. `kept` is to be let go once the open is done.
  Status check_stale(const ObjectPtr& object, const OpenRequest& request, const Caller& caller, ObjectPtr& kept);
  // What was looked up is gone when it is opened; fs/ answers ESTALE, and the kernel looks again. kNotFound: it has done so.
  std::unexpected<Error> gone_before_open(ObjectId id, Error error, const OpenRequest& request, const Caller& caller);
  // As in store.h.
  Result<Stat> open_directory(ObjectId id, const Caller& caller);
  void let_go(const StaleOpens::Released& released);
  // As in store.h.
  bool told_stale(const OpenRequest& request, const Caller& caller) { return tell_stale(request, {}, caller); }
  bool may_look_again(const Caller& caller, bool by_name);

 private:
  bool tell_stale(const OpenRequest& request, ObjectId id, const Caller& caller);
  ObjectPtr to_be_written(const ObjectPtr& object, const Caller& caller);
  Result<ObjectPtr> new_version(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object, const Caller& caller);
  Result<ObjectPtr> replacement(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object, const Caller& caller);

  const Parts parts_;
};

}  // namespace kvcachefs
