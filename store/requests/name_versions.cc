#include "store/requests/name_versions.h"

#include <sys/stat.h>

#include <utility>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/object/in_place_mark.h"
#include "store/object/pin_mark.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

namespace {

StaleOpens::Told told_of(const OpenRequest& request, ObjectId id = {}) {
  return {.open = true, .write = request.write || request.truncate, .truncate = request.truncate, .object = id};
}

}  // namespace

// --- versions ---

Result<ObjectPtr> NameVersions::version_to_write(Tree::Write& tree, ObjectId parent, std::string_view name, ObjectId chosen, const Caller& caller) {
  if (ObjectPtr made = tree.version_awaiting_open(parent, name, caller.thread_id)) return made;
  KVC_ASSIGN(ObjectPtr object, tree.get(chosen));
  const Tree::ForgetAfter forget(tree, object);  // even if it is the answer: the caller keeps the object that is to be opened
  if (object->id.is_foreign() || !object->is_regular()) return object;
  if (tree.still_written_by_other(*object, caller.thread_id)) return new_version(tree, parent, name, object, caller);
  if (object->temporary && !object->published) take_over(*object, caller);  // its writer has ended: one of those that wait for this gets it
  return object;
}

// Caller holds the lock of the Tree. The thread is about to empty the file: from now on a version of its own is made for each other one.
void NameVersions::take_over(Object& object, const Caller& caller) const {
  note_writer(object, caller.thread_id);
  const auto lock = object.lock();
  object.last_write_ns = parts_.clock.monotonic_ns();
}

// A new empty object, to be opened and written by the caller; mode, owner and extended attributes are those of `object`.
Result<ObjectPtr> NameVersions::to_be_written(const ObjectPtr& object, ObjectId id, const Caller& caller) {
  Caller owner = caller;
  uint32_t mode = 0;
  std::vector<Xattr> xattrs;
  {
    const auto lock = object->lock();
    mode = object->attributes.mode;
    xattrs = object->attributes.xattrs;
    owner.uid = object->attributes.uid;
    owner.gid = object->attributes.gid;
  }
  std::erase_if(xattrs, [](const Xattr& xattr) { return xattr.name == kInPlaceMark || xattr.name == kPinMark; });  // of that object alone
  const uint64_t xattr_bytes = bytes_of(xattrs);
  if (xattr_bytes > 0 && !parts_.records.has_room_for_xattrs(xattr_bytes))
    return fail(Code::kNoSpace, fmt::format("{} of attributes are not in the journal, of files that are open perhaps", format_size(RecordSpace::kMostXattrBytes)));
  ObjectPtr fresh = parts_.new_objects.make(id, mode, 0, owner);
  note_writer(*fresh, caller.thread_id);
  {
    const auto lock = fresh->lock();
    fresh->attributes.xattrs = std::move(xattrs);
    parts_.records.keep_xattrs(fresh->unjournaled_xattrs, xattr_bytes);
    parts_.changes.mark_attributes_dirty(fresh);
    parts_.changes.content_changed(fresh);
    parts_.file_policy.expect_size(*fresh, parts_.file_policy.guess_size(caller.thread_id));
    fresh->awaiting_open = true;  // it counts as unfinished until its maker has opened and written it
    fresh->unflushed_handles = 1;
  }
  return fresh;
}

// Makes a new empty body under the name, which `object` has; `object` stays as an older version.
Result<ObjectPtr> NameVersions::new_version(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object,
                                            const Caller& caller) {
  KVC_ASSIGN(const ObjectPtr fresh, to_be_written(object, parts_.new_objects.next_id(), caller));
  KVC_TRY(add_version(tree, parent, name, object, fresh));
  return fresh;
}

Status NameVersions::add_version(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object, const ObjectPtr& fresh) {
  KVC_ASSIGN(Namespace::Edit state, tree.edit(parent, name));
  fresh->temporary = true;
  fresh->lock_identity = object->lock_identity.load();
  tree.add_version(state, parent, name, object, fresh);
  return {};
}

// --- stand-ins ---

Result<ObjectPtr> NameVersions::object_to_open(ObjectId id, const OpenRequest& request, const Caller& caller) {
  if (!request.truncate) {
    auto found = parts_.tree.get(id);
    if (found || found.error().code != Code::kNotFound) return found;
    // Its node has changed and removed it since the lookup: the thread opens what it found, for it is not answered kStale twice.
    if (ObjectPtr kept = parts_.stale_opens.kept_of(caller.thread_id, id)) return kept;
    return found;
  }
  const auto asked = parts_.stale_opens.stand_in_of(caller.thread_id, id);
  return asked ? make_stand_in(*asked, caller) : parts_.tree.get(id);
}

Result<Stat> NameVersions::stat_or_stand_in(ObjectId id, Result<Stat> known) const {
  if (known) return known;
  const auto of = parts_.stale_opens.stands_for(id);
  if (!of) return known;
  Result<Stat> stat = parts_.tree.read().stat(*of);
  if (stat) stat->id = id;
  return stat;
}

// This node does not write a peer's object: a caller that writes the name anew gets a file of this node in its place.
Result<ObjectPtr> NameVersions::make_stand_in(const StaleOpens::StandIn& asked, const Caller& caller) {
  const KnownProcess process(caller.thread_id);
  Tree::Write tree = parts_.tree.write();
  auto found = tree.get(asked.of);
  // Its node has changed and removed it since the lookup, as in object_to_open().
  const bool removed = !found && found.error().code == Code::kNotFound;
  if (ObjectPtr kept = removed ? parts_.stale_opens.kept_of(caller.thread_id, asked.of) : nullptr) found = std::move(kept);
  if (!found) return found;
  const ObjectPtr& object = *found;
  const Tree::ForgetAfter forget(tree, object);
  if (parts_.room.is_full()) return parts_.room.refuse(entry_text(asked.parent, asked.name));
  KVC_ASSIGN(const ObjectPtr fresh, to_be_written(object, asked.id, caller));
  {
    const auto lock = fresh->lock();  // the truncation is done with this, even if the writer ends before its open
    fresh->awaiting_open = false;
    fresh->unflushed_handles = 0;
  }
  const Status put = put_in_place(tree, asked, fresh, caller);
  if (!put && put.error().code != Code::kNotFound && put.error().code != Code::kStale) return std::unexpected(put.error());
  if (put) {
    tree.keep_for_repeat(parts_.stale_opens, caller.thread_id, fresh->id);
    return fresh;
  }
  // The name was removed or renamed since the lookup: as if that had come after the open. If it is a temporary one its writer's rename is to come here.
  const bool temporary = parts_.tree.temporary_names().is_expected_to_be_renamed(asked.parent, asked.name);
  {
    const auto lock = fresh->lock();
    fresh->nlink = 1;
    fresh->last_write_ns = parts_.clock.monotonic_ns();
  }
  tree.add(fresh);
  tree.keep_for_repeat(parts_.stale_opens, caller.thread_id, fresh->id);
  fresh->temporary = temporary;
  if (temporary) tree.lose_name(fresh, asked.parent, asked.name);
  else tree.change_links(fresh, -1);
  return fresh;
}

// Gives it the name, in place of the file there, on all nodes. That may be one of this node since the lookup, as when two threads write the name
// anew at once: a file that its writer may still rename stays beside it as a version. kNotFound: no file has the name any more.
Status NameVersions::put_in_place(Tree::Write& tree, const StaleOpens::StandIn& asked, const ObjectPtr& fresh, const Caller& caller) {
  KVC_ASSIGN(const auto found, tree.find_name(asked.parent, asked.name));
  if (!found || found->type_bits != S_IFREG) return fail(Code::kNotFound, entry_text(asked.parent, asked.name));
  KVC_ASSIGN(const ObjectPtr replaced, tree.get(found->child));
  const Tree::ForgetAfter forget(tree, replaced);
  if (!replaced->id.is_foreign() && tree.still_written_by_other(*replaced, caller.thread_id)) return add_version(tree, asked.parent, asked.name, replaced, fresh);
  KVC_ASSIGN(const ObjectPtr directory, tree.directory_for_entry(asked.parent));
  const Tree::ForgetAfter forget_directory(tree, directory);
  KVC_TRY(tree.make_entry(directory, asked.name, fresh));
  tree.change_links(replaced, -1);
  return {};
}

// --- stale opens ---

void NameVersions::let_go(const StaleOpens::Released& released) {
  if (!released.empty()) parts_.tree.write().let_go(released);
}

Status NameVersions::check_stale(const ObjectPtr& object, const OpenRequest& request, const Caller& caller, ObjectPtr& kept) {
  const bool known = caller.thread_id != 0;
  if (request.again && !request.truncate && !parts_.stale_opens.knows(caller.thread_id)) return {};
  const int64_t relookup_until_ns = object->relookup_until_ns.load(std::memory_order_relaxed);
  const bool recheck = known && relookup_until_ns != 0 && relookup_until_ns > parts_.clock.monotonic_ns();
  if (!request.truncate && !request.write && !recheck && !parts_.stale_opens.knows(caller.thread_id)) return {};
  const KnownProcess process(caller.thread_id, request.truncate);
  Tree::Write tree = parts_.tree.write();
  const auto take_over = [&] {
    if (request.truncate) this->take_over(*object, caller);
  };
  StaleOpens::Repeated repeated = parts_.stale_opens.looked_again(caller.thread_id, object);
  kept = std::move(repeated.kept);
  // The lookup of a repetition answers a stand-in for a peer's file. If the file itself is opened all the same, the entry is of an earlier call, which
  // was not repeated as far as its open.
  const bool is_later = request.truncate && object->id.is_foreign() && !repeated.blind;
  if (repeated.repeats && !is_later) {
    if (object->id.is_foreign() && kept == object) object->relookup_until_ns = 0;  // its lookup told what the object is now
    if (request.truncate) KVC_TRY(parts_.check_may_change(*object));
    take_over();
    return {};
  }
  auto stale = [&](const char* why) {
    StaleOpens::Released released;
    parts_.stale_opens.tell(caller.thread_id, told_of(request, object->id), released);
    tree.let_go(released);
    return fail(Code::kStale, fmt::format("object {}: {}; look its name up again", object->id.value, why));
  };
  if (recheck) return stale("another version of its name may be meant, or its node changed it a moment ago");
  if (request.write && object->nlink == 0) return stale("it was replaced");
  if (!request.truncate) return {};
  if (object->id.is_foreign()) return known ? stale("another node stored it") : parts_.check_may_change(*object);
  if (known && parts_.clock.monotonic_ns() - object->moved_ns.load(std::memory_order_relaxed) < kMovedNs) return stale("it was renamed");
  if (tree.still_written_by_other(*object, caller.thread_id)) return stale("another thread is writing it");
  take_over();
  return {};
}

void NameVersions::end_repetition(const Caller& caller) {
  if (StaleOpens::Repeated repeated = parts_.stale_opens.looked_again(caller.thread_id, nullptr); repeated.kept) let_go({std::move(repeated.kept)});
}

bool NameVersions::tell_stale(const OpenRequest& request, ObjectId id, const Caller& caller) {
  StaleOpens::Released released;
  const bool told = parts_.stale_opens.tell_unless_blind(caller.thread_id, told_of(request, id), released);
  let_go(released);
  return told;
}

bool NameVersions::told_stale(const OpenRequest& request, const Caller& caller, ObjectId object) {
  // Unknown threads cannot be told apart, so each repetition would be told, too. They open the state of a peer's file that is open here.
  if (caller.thread_id == 0 && object.is_foreign()) return false;
  if (object.valid() && parts_.stale_opens.repeats_open(caller.thread_id, object)) return false;  // the open that follows ends the repetition
  return tell_stale(request, {}, caller);
}

bool NameVersions::may_look_again(const Caller& caller, bool by_name, const std::optional<OpenRequest>& open) {
  StaleOpens::Released released;
  const bool told = parts_.stale_opens.tell_once(caller.thread_id, by_name, released, open ? told_of(*open) : StaleOpens::Told{});
  let_go(released);
  return told;
}

std::unexpected<Error> NameVersions::gone_before_open(ObjectId id, Error error, const OpenRequest& request, const Caller& caller) {
  if (error.code != Code::kNotFound) {  // the call ends with this error: the thread's next open is no repetition of it
    end_repetition(caller);
    return std::unexpected(std::move(error));
  }
  const bool looked_again = parts_.stale_opens.kept_of(caller.thread_id, id) != nullptr;  // and found it
  if (looked_again) end_repetition(caller);
  if (request.again || looked_again || !tell_stale(request, id, caller)) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
  return fail(Code::kStale, fmt::format("object {} was removed; look its name up again", id.value));
}

Result<Stat> NameVersions::open_directory(ObjectId id, const Caller& caller) {
  Result<Stat> stat = fail(Code::kNotFound, {});
  bool gone = false;
  {
    const Tree::Read tree = parts_.tree.read();
    stat = tree.stat(id);
    if (!stat && stat.error().code != Code::kNotFound) return stat;
    const ObjectPtr object = tree.live(id);
    gone = !stat || (stat->nlink == 0 && !(object && Tree::View::is_read_still(*object)));
  }
  if (gone && tell_stale({}, id, caller)) return fail(Code::kStale, fmt::format("directory {} was removed; look its name up again", id.value));
  end_repetition(caller);
  return stat;
}

}  // namespace kvcachefs
