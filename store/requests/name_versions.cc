#include "store/requests/name_versions.h"

#include <algorithm>

#include <fmt/format.h>

namespace kvcachefs {

namespace {

// For so long after a rename a truncating open is made to look the name up again: the kernel may open by what it knew before.
constexpr int64_t kMovedNs = 10'000'000'000;

StaleOpens::Told told_of(const OpenRequest& request, ObjectId id = {}) {
  return {.open = true, .write = request.write || request.truncate, .truncate = request.truncate, .object = id};
}

}  // namespace

// --- versions ---

Result<ObjectPtr> NameVersions::version_to_write(Tree::Write& tree, ObjectId parent, std::string_view name, ObjectId chosen, ObjectId refused,
                                                 const Caller& caller) {
  if (ObjectPtr made = tree.version_awaiting_open(parent, name, caller.thread_id)) return made;
  KVC_ASSIGN(ObjectPtr object, tree.get(chosen));
  const Tree::ForgetAfter forget(tree, object);  // even if it is the answer: the caller keeps the object that is to be opened
  // The name is meant if the refused object is this one, or was replaced or is hidden by this one. Otherwise the thread looks up another name.
  const auto is_gone = [&](ObjectId id) {
    const auto stat = tree.stat(id);
    return stat ? stat->nlink == 0 : stat.error().code == Code::kNotFound;
  };
  const auto is_hidden = [&](ObjectId id) {
    const auto there = tree.view().bindings(parent, name);
    return there && std::ranges::any_of(*there, [id](const NameView::Binding& each) { return each.entry.child == id; });
  };
  if (object->id.is_foreign()) {
    const bool is_meant = refused.valid() && (refused == chosen || is_gone(refused) || is_hidden(refused));
    return object->is_regular() && is_meant ? replacement(tree, parent, name, object, caller) : object;
  }
  if (!object->is_regular() || !tree.still_written_by_other(*object, caller.thread_id)) return object;
  return new_version(tree, parent, name, object, caller);
}

// A new empty object, to be opened and written by the caller; mode and owner are those of `object`.
ObjectPtr NameVersions::to_be_written(const ObjectPtr& object, const Caller& caller) {
  Caller owner = caller;
  uint32_t mode = 0;
  {
    const auto lock = object->lock();
    mode = object->attributes.mode;
    owner.uid = object->attributes.uid;
    owner.gid = object->attributes.gid;
  }
  ObjectPtr fresh = parts_.new_objects.make(mode, 0, owner);
  fresh->writer_thread = caller.thread_id;
  {
    const auto lock = fresh->lock();
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
  KVC_ASSIGN(Namespace::Edit state, tree.edit(parent, name));
  ObjectPtr fresh = to_be_written(object, caller);
  fresh->temporary = true;
  fresh->lock_identity = object->lock_identity.load();
  tree.add_version(state, parent, name, object, fresh);
  return fresh;
}

// This node does not write a peer's object: a caller that writes the name anew gets a file of this node in its place.
Result<ObjectPtr> NameVersions::replacement(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object,
                                            const Caller& caller) {
  if (parts_.room.is_full()) return parts_.room.refuse(entry_text(parent, name));
  KVC_ASSIGN(ObjectPtr directory, tree.directory_for_entry(parent));
  const Tree::ForgetAfter forget(tree, directory);
  ObjectPtr fresh = to_be_written(object, caller);
  {
    const auto lock = fresh->lock();  // the truncation is done with this, even if the writer ends before its open
    fresh->awaiting_open = false;
    fresh->unflushed_handles = 0;
  }
  KVC_TRY(tree.make_entry(directory, name, fresh));  // in place of the peer's, on all nodes
  tree.change_links(object, -1);  // the caller that got it forgets it
  return fresh;
}

// --- stale opens ---

void NameVersions::let_go(const StaleOpens::Released& released) {
  if (!released.empty()) parts_.tree.write().let_go(released);
}

Status NameVersions::check_stale(const ObjectPtr& object, const OpenRequest& request, const Caller& caller, ObjectPtr& kept) {
  const bool known = caller.thread_id != 0;
  const int64_t relookup_until_ns = object->relookup_until_ns.load(std::memory_order_relaxed);
  const bool recheck = known && relookup_until_ns != 0 && relookup_until_ns > parts_.clock.monotonic_ns();
  if (!request.truncate && !request.write && !recheck && !parts_.stale_opens.knows(caller.thread_id)) return {};
  Tree::Write tree = parts_.tree.write();
  auto take_over = [&] {
    if (!request.truncate || object->writer_thread == caller.thread_id) return;
    object->writer_thread = caller.thread_id;
    object->writer_process = 0;
  };
  StaleOpens::Repeated repeated = parts_.stale_opens.looked_again(caller.thread_id, object);
  kept = std::move(repeated.kept);
  if (repeated.repeats) {
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
  if (recheck) return stale("another version of its name may be meant");
  if (request.write && object->nlink == 0) return stale("it was replaced");
  if (!request.truncate) return {};
  if (object->id.is_foreign()) return known ? stale("another node stored it") : parts_.check_may_change(*object);
  if (known && parts_.clock.monotonic_ns() - object->moved_ns.load(std::memory_order_relaxed) < kMovedNs) return stale("it was renamed");
  if (tree.still_written_by_other(*object, caller.thread_id)) return stale("another thread is writing it");
  take_over();
  return {};
}

bool NameVersions::tell_stale(const OpenRequest& request, ObjectId id, const Caller& caller) {
  StaleOpens::Released released;
  const bool told = parts_.stale_opens.tell_unless_blind(caller.thread_id, told_of(request, id), released);
  let_go(released);
  return told;
}

bool NameVersions::may_look_again(const Caller& caller, bool by_name) {
  StaleOpens::Released released;
  const bool told = parts_.stale_opens.tell_once(caller.thread_id, by_name, released);
  let_go(released);
  return told;
}

std::unexpected<Error> NameVersions::gone_before_open(ObjectId id, Error error, const OpenRequest& request, const Caller& caller) {
  if (error.code != Code::kNotFound) return std::unexpected(std::move(error));
  if (!tell_stale(request, id, caller)) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
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
  if (StaleOpens::Repeated repeated = parts_.stale_opens.looked_again(caller.thread_id, nullptr); repeated.kept) let_go({std::move(repeated.kept)});
  return stat;
}

}  // namespace kvcachefs
