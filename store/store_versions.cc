// Several writers of one temporary name: each gets a version of its own (which of them is meant is chosen by the Tree). What the
// kernel knows about names can lag behind; an open that may rest on that is answered kStale, which makes the kernel look the name
// up and open again, once (fs/README.md, "the two exceptions").
#include <fmt/format.h>

#include "store/store_impl.h"

namespace kvcachefs {

namespace {

// A name that was moved is looked up again by whoever opens it with what the kernel knew before.
constexpr int64_t kMovedNs = 10'000'000'000;

StaleOpens::Told told_of(const OpenRequest& request, ObjectId id = {}) {
  return {.open = true, .write = request.write || request.truncate, .truncate = request.truncate, .object = id};
}

}  // namespace

// --- versions ---

// `chosen` is what a lookup found. The kernel may look up twice for one open: the version made the first time is answered the
// second time.
// `refused`: the object that the open named.
Result<ObjectPtr> StoreImpl::version_to_write(Tree::Write& tree, ObjectId parent, std::string_view name, ObjectId chosen, ObjectId refused,
                                              const Caller& caller) {
  if (ObjectPtr made = tree.version_awaiting_open(parent, name, caller.thread_id)) return made;
  KVC_ASSIGN(ObjectPtr object, tree.get(chosen));
  // What was refused is this, or was replaced by this: another name that the thread looks up is not meant.
  const auto is_gone = [&](ObjectId id) {
    const auto stat = tree.stat(id);
    return stat ? stat->nlink == 0 : stat.error().code == Code::kNotFound;
  };
  if (object->id.is_foreign())
    return object->is_regular() && refused.valid() && (refused == chosen || is_gone(refused)) ? replacement(tree, parent, name, object, caller) : object;
  if (!object->is_regular() || !tree.still_written_by_other(*object, caller.thread_id)) return object;
  return new_version(tree, parent, name, object, caller);
}

// An empty one, to be opened and written by the caller, like `object` otherwise.
ObjectPtr StoreImpl::to_be_written(const ObjectPtr& object, const Caller& caller) {
  Caller owner = caller;
  uint32_t mode = 0;
  {
    const auto lock = object->lock();
    mode = object->attributes.mode;
    owner.uid = object->attributes.uid;
    owner.gid = object->attributes.gid;
  }
  ObjectPtr fresh = make_object(mode, 0, owner);
  fresh->writer_thread = caller.thread_id;
  {
    const auto lock = fresh->lock();
    changes_->mark_attributes_dirty(fresh);
    changes_->content_changed(fresh);
    file_policy_->expect_size(*fresh, file_policy_->guess_size(caller.thread_id));
    fresh->awaiting_open = true;  // not finished before its maker has opened and written it
    fresh->unflushed_handles = 1;
  }
  return fresh;
}

// A new empty body under the name, which `object` has; that stays as an older version.
Result<ObjectPtr> StoreImpl::new_version(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object,
                                         const Caller& caller) {
  KVC_ASSIGN(Namespace::Edit state, tree.names().edit(parent, name));
  ObjectPtr fresh = to_be_written(object, caller);
  fresh->temporary = true;
  fresh->lock_identity = object->lock_identity.load();
  tree.add_version(state, parent, name, object, fresh);
  return fresh;
}

// What a peer stored is not written here: whoever writes it anew gets a file of this node in its place.
Result<ObjectPtr> StoreImpl::replacement(Tree::Write& tree, ObjectId parent, std::string_view name, const ObjectPtr& object,
                                         const Caller& caller) {
  if (is_full()) return no_room_for_record(entry_text(parent, name));
  KVC_ASSIGN(ObjectPtr directory, tree.directory_for_entry(parent));
  ObjectPtr fresh = to_be_written(object, caller);
  {
    const auto lock = fresh->lock();  // it is what was truncated, also if its writer ends before the open
    fresh->awaiting_open = false;
    fresh->unflushed_handles = 0;
  }
  KVC_TRY(tree.make_entry(directory, name, fresh));  // in place of the peer's, on all nodes
  tree.change_links(object, -1);
  tree.forget_if_idle(object);
  return fresh;
}

// --- stale opens ---

void StoreImpl::let_go(const StaleOpens::Released& released) {
  if (!released.empty()) tree_->write().let_go(released);
}

// kStale when the nodeid the kernel opens is not, or no longer, what the name means to this caller: it looks the name up
// again and opens what it finds. The kernel does so once, so no open is told twice; nor one whose thread is not known, but
// where looking again finds another object for sure.
Status StoreImpl::check_stale(const ObjectPtr& object, const OpenRequest& request, const Caller& caller, ObjectPtr& kept) {
  const bool known = caller.thread_id != 0;
  const int64_t relookup_until_ns = object->relookup_until_ns.load(std::memory_order_relaxed);
  const bool recheck = known && relookup_until_ns != 0 && relookup_until_ns > clock_.monotonic_ns();
  if (!request.truncate && !request.write && !recheck && !stale_opens_.knows(caller.thread_id)) return {};
  Tree::Write tree = tree_->write();
  auto take_over = [&] {
    if (!request.truncate || object->writer_thread == caller.thread_id) return;
    object->writer_thread = caller.thread_id;
    object->writer_process = 0;
  };
  StaleOpens::Repeated repeated = stale_opens_.looked_again(caller.thread_id, object);
  kept = std::move(repeated.kept);
  if (repeated.repeats) {
    if (request.truncate) KVC_TRY(check_may_change(*object));
    take_over();
    return {};
  }
  auto stale = [&](const char* why) {
    StaleOpens::Released released;
    stale_opens_.tell(caller.thread_id, told_of(request, object->id), released);
    tree.let_go(released);
    return fail(Code::kStale, fmt::format("object {}: {}; look its name up again", object->id.value, why));
  };
  if (recheck) return stale("another version of its name may be meant");
  if (request.write && object->nlink == 0) return stale("it was replaced");
  if (!request.truncate) return {};
  if (object->id.is_foreign()) return known ? stale("another node stored it") : check_may_change(*object);
  if (known && clock_.monotonic_ns() - object->moved_ns.load(std::memory_order_relaxed) < kMovedNs) return stale("it was renamed");
  if (tree.still_written_by_other(*object, caller.thread_id)) return stale("another thread is writing it");
  take_over();
  return {};
}

bool StoreImpl::told_stale(const OpenRequest& request, const Caller& caller) { return tell_stale(request, {}, caller); }

bool StoreImpl::tell_stale(const OpenRequest& request, ObjectId id, const Caller& caller) {
  StaleOpens::Released released;
  const bool told = stale_opens_.tell_unless_blind(caller.thread_id, told_of(request, id), released);
  let_go(released);
  return told;
}

bool StoreImpl::may_look_again(const Caller& caller, bool by_name) {
  StaleOpens::Released released;
  const bool told = stale_opens_.tell_once(caller.thread_id, by_name, released);
  let_go(released);
  return told;
}

// What was looked up is gone when it is opened; fs/ answers ESTALE, and the kernel looks again. kNotFound: it has done so.
std::unexpected<Error> StoreImpl::gone_before_open(ObjectId id, Error error, const OpenRequest& request, const Caller& caller) {
  if (error.code != Code::kNotFound) return std::unexpected(std::move(error));
  if (!tell_stale(request, id, caller)) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
  return fail(Code::kStale, fmt::format("object {} was removed; look its name up again", id.value));
}

}  // namespace kvcachefs
