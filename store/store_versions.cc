// Several writers of one temporary name: each gets a version of its own, and a rename takes the caller's. What the kernel
// knows about names can lag behind; an open that may rest on that is answered kStale, which makes the kernel look the name
// up and open again, once (fs/README.md, "the two exceptions").
#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>

#include "store/store_impl.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

namespace {

// A temporary name closed less than this ago is about to be renamed by its writer.
constexpr int64_t kAboutToRenameNs = 10'000'000'000;
// An older version of a temporary name that nobody renamed for so long was left behind.
constexpr int64_t kVersionLeftNs = 60'000'000'000;
// How long a body that a rename replaced can still be opened: the kernel looks a name up and then opens what it found, and
// repeats that only once.
constexpr int64_t kLingerNs = 1'000'000'000;
constexpr uint64_t kMaxLingerBytes = 64 * kMiB;
constexpr size_t kMaxLingering = 256;
constexpr size_t kMaxKeptForRename = 20'000;
// A name that was moved is looked up again by whoever opens it with what the kernel knew before.
constexpr int64_t kMovedNs = 10'000'000'000;

StaleOpens::Told told_of(const OpenRequest& request) {
  return {.open = true, .write = request.write || request.truncate, .truncate = request.truncate};
}

bool has_ended(uint32_t thread_id) { return kill(static_cast<pid_t>(thread_id), 0) != 0 && errno == ESRCH; }

}  // namespace

// Takes names_mutex_ and gives it up. The threads of which the processes are asked for when the name is looked up (to be written:
// a version of its own may be made), renamed or removed by the caller. None where that is not asked: the name has one version.
// What others do between this and the call is not known here: process_of() reads /proc then.
std::vector<uint32_t> StoreImpl::writers_of(ObjectId parent, std::string_view name, const Caller& caller, bool to_be_written) {
  std::vector<uint32_t> threads;
  if (!to_be_written && !has_versions_.load(std::memory_order_relaxed)) return threads;
  std::shared_lock lock(names_mutex_);
  const NameState* state = names_->dirty(parent, name);
  const bool several = state != nullptr && !state->older_versions.empty();
  if (!several && !to_be_written) return threads;
  threads.push_back(caller.thread_id);
  const auto add = [&](ObjectId id) {
    const ObjectPtr object = live(id);
    if (object && object->writer_process == 0 && std::count(threads.begin(), threads.end(), object->writer_thread) == 0)
      threads.push_back(object->writer_thread);
  };
  if (const auto found = names_->find(parent, name); found && *found) add((*found)->child);
  if (state != nullptr)
    for (ObjectId id : state->older_versions) add(id);
  return threads;
}

// names_mutex_ held exclusively. Kept, for the thread that opened may have ended before the rename.
uint32_t StoreImpl::writer_process(Object& object) {
  if (object.writer_process == 0) object.writer_process = process_of(object.writer_thread);
  return object.writer_process;
}

// --- choosing ---

// For a lookup: what the caller itself is making, else the newest that reads whole. names_mutex_ held exclusively.
ObjectId StoreImpl::choose_version_to_read(const NameState& state, uint32_t thread_id) {
  if (ObjectPtr newest = live(state.child); newest && writer_process(*newest) == process_of(thread_id)) return state.child;
  std::vector<ObjectId> versions = state.older_versions;
  versions.push_back(state.child);
  for (auto id = versions.rbegin(); id != versions.rend(); ++id) {
    ObjectPtr object = live(*id);
    if (!object) continue;
    const auto lock = object->lock();
    if (object->finished()) return *id;
  }
  return state.child;
}

// For a rename: the newest finished version of the caller's process (of its thread, where that has one), else the newest
// finished, else the newest that its maker has opened (clients rename before they close). names_mutex_ held exclusively.
ObjectId StoreImpl::choose_version(const NameState& state, uint32_t thread_id) {
  const uint32_t process = process_of(thread_id);
  ObjectId best = state.child;
  int best_rank = -1;
  auto consider = [&](ObjectId id) {  // newest first
    ObjectPtr object = live(id);
    if (!object) return;
    int rank = object->writer_thread == thread_id ? 2 : writer_process(*object) == process ? 1 : 0;
    {
      const auto lock = object->lock();
      if (object->finished()) rank += 6;
      else if (!object->awaiting_open) rank += 3;
    }
    if (rank <= best_rank) return;
    best_rank = rank;
    best = id;
  };
  consider(state.child);
  for (auto id = state.older_versions.rbegin(); id != state.older_versions.rend(); ++id) consider(*id);
  return best;
}

bool StoreImpl::still_written_by_other(Object& object, uint32_t thread_id) {
  // names_mutex_ held. Closed a moment ago and not renamed yet counts too: its writer is about to rename it. What is locked is no
  // chunk, whatever its name.
  if (!object.temporary || object.locked.load(std::memory_order_relaxed)) return false;
  if (object.published && object.durable) return false;
  // Processes that cannot be told apart (of a PID namespace that is not visible here) have what POSIX gives them.
  if (object.writer_thread == 0 || thread_id == 0) return false;
  const auto lock = object.lock();
  // Where several write, a rename may have taken another's version, whose writer needs this one.
  if ((object.writer_thread == thread_id && !object.contended) || object.nlink != 1) return false;
  if (object.unflushed_handles > 0) return true;
  return !object.published && object.last_write_ns != 0 &&
         clock_.monotonic_ns() - object.last_write_ns < kAboutToRenameNs && !has_ended(object.writer_thread);
}

// names_mutex_ held. A version of a temporary name is not cached by the kernel under that name, also when it is the last one
// left: a lookup can be answered after another's rename was done here, and before the kernel moved its entry, which would
// take the time-out along to the target.
bool StoreImpl::is_one_of_several(ObjectId id) const {
  ObjectPtr object = live(id);
  return object && object->contended && !object->published;
}

// --- making ---

// names_mutex_ held exclusively; `chosen` is what a lookup found. The kernel may look up twice for one open: the version
// made the first time is answered the second time.
Result<ObjectPtr> StoreImpl::version_to_write(ObjectId parent, std::string_view name, ObjectId chosen, const Caller& caller) {
  if (const NameState* state = names_->dirty(parent, name)) {
    std::vector<ObjectId> versions = state->older_versions;
    versions.push_back(state->child);
    for (ObjectId id : versions) {
      ObjectPtr object = live(id);
      if (!object) continue;
      const auto lock = object->lock();
      if (object->awaiting_open && object->writer_thread == caller.thread_id) return object;
    }
  }
  KVC_ASSIGN(ObjectPtr object, get_locked(chosen));
  if (!object->is_regular() || !still_written_by_other(*object, caller.thread_id)) return object;
  return new_version(parent, name, object, caller);
}

// names_mutex_ held exclusively: a new empty body under the name, which `object` has; that stays as an older version.
Result<ObjectPtr> StoreImpl::new_version(ObjectId parent, std::string_view name, const ObjectPtr& object, const Caller& caller) {
  KVC_ASSIGN(Namespace::Edit state, names_->edit(parent, name));
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
  fresh->temporary = true;
  fresh->lock_identity = object->lock_identity.load();
  writer_process(*object);
  writer_process(*fresh);
  object->contended = fresh->contended = true;
  fresh->nlink = 1;
  {
    const auto lock = fresh->lock();
    mark_attributes_dirty(fresh);
    content_changed(fresh);
    file_policy_->expect_size(*fresh, file_policy_->guess_size(caller.thread_id));
    fresh->awaiting_open = true;  // not finished before its maker has opened and written it
    fresh->unflushed_handles = 1;
  }
  state->older_versions.push_back(state->child);
  state->child = fresh->id;
  has_versions_ = true;
  names_->note_several(parent, name);
  table_.emplace(fresh->id, fresh);
  return fresh;
}

// Its maker was told of it and did not open it in all that time: it will not.
bool StoreImpl::is_abandoned(ObjectId id, int64_t for_ns) const {
  ObjectPtr object = live(id);
  if (!object) return false;
  const auto lock = object->lock();
  return object->awaiting_open && object->handles == 0 && clock_.monotonic_ns() - object->last_write_ns >= for_ns;
}

// Older versions that nobody renamed; not the newest that reads whole, which the name means until a newer one is finished;
// and a newest that was never opened. `all`: at the end of the mount, also what was written a moment ago; but not beside a
// newer one that is not finished, for then the name means one of them.
void StoreImpl::sweep_versions(bool all) {
  std::unique_lock lock(names_mutex_);
  std::vector<std::pair<DirtyName, ObjectId>> dropped;
  bool some_left = false;
  const int64_t now = clock_.monotonic_ns();
  names_->for_each_with_versions([&](const DirtyName& name, NameState& state) {
    while (!state.older_versions.empty() && is_abandoned(state.child, all ? 0 : kAboutToRenameNs)) {
      dropped.emplace_back(name, std::exchange(state.child, state.older_versions.back()));
      state.older_versions.pop_back();
    }
    const ObjectId kept = version_to_keep(state);
    const bool now_or_never = all && kept == state.child;
    std::erase_if(state.older_versions, [&](ObjectId id) {
      if (id == kept) return false;
      ObjectPtr object = live(id);
      if (!object) return true;
      const auto object_lock = object->lock();
      if (object->handles > 0 || (!now_or_never && now - object->last_write_ns < kVersionLeftNs)) return false;
      dropped.emplace_back(name, id);
      return true;
    });
    some_left |= !state.older_versions.empty();
  });
  has_versions_ = some_left;
  for (auto& [name, id] : dropped) {
    if (ObjectPtr object = live(id)) {
      change_links(object, -1);
      forget_if_idle(object);
    }
    names_->put_back_pending(name);
  }
  if (!dropped.empty()) dirty_.wake();
}

// --- stale opens ---

// names_mutex_ held exclusively. What a repeated lookup found stays until the call is repeated: it is not told twice. However
// full the volume is, for it is one object a thread.
void StoreImpl::keep_for_repeat(uint32_t thread_id, ObjectId id) {
  if (thread_id != 0 && !stale_opens_.knows(thread_id)) return;
  const auto object = get_locked(id);
  if (!object) return;
  if (thread_id == 0) return linger_for_unknown(*object);
  {
    const auto lock = (*object)->lock();
    ++(*object)->kept_for_repeat;
  }
  StaleOpens::Released released;
  stale_opens_.keep(thread_id, *object, released);
  let_go_locked(released);
}

// names_mutex_ held exclusively.
void StoreImpl::let_go_locked(const StaleOpens::Released& released) {
  for (const ObjectPtr& kept : released) {
    {
      const auto lock = kept->lock();
      --kept->kept_for_repeat;
    }
    forget_if_idle(kept);
  }
}

void StoreImpl::let_go(const StaleOpens::Released& released) {
  if (released.empty()) return;
  std::unique_lock lock(names_mutex_);
  let_go_locked(released);
}

// kStale when the nodeid the kernel opens is not, or no longer, what the name means to this caller: it looks the name up
// again and opens what it finds. The kernel does so once, so no open is told twice; nor one whose thread is not known, but
// where looking again finds another object for sure.
Status StoreImpl::check_stale(const ObjectPtr& object, const OpenRequest& request, const Caller& caller, ObjectPtr& kept) {
  const bool known = caller.thread_id != 0;
  const int64_t relookup_until_ns = object->relookup_until_ns.load(std::memory_order_relaxed);
  const bool recheck = known && relookup_until_ns != 0 && relookup_until_ns > clock_.monotonic_ns();
  if (!request.truncate && !request.write && !recheck && !stale_opens_.knows(caller.thread_id)) return {};
  std::unique_lock lock(names_mutex_);
  auto take_over = [&] {
    if (!request.truncate || object->writer_thread == caller.thread_id) return;
    object->writer_thread = caller.thread_id;
    object->writer_process = 0;
  };
  StaleOpens::Repeated repeated = stale_opens_.looked_again(caller.thread_id, object);
  kept = std::move(repeated.kept);
  if (repeated.repeats) {
    take_over();
    return {};
  }
  auto stale = [&](const char* why) {
    StaleOpens::Released released;
    stale_opens_.tell(caller.thread_id, told_of(request), released);
    let_go_locked(released);
    return fail(Code::kStale, fmt::format("object {}: {}; look its name up again", object->id.value, why));
  };
  if (recheck) return stale("another version of its name may be meant");
  if (request.write && object->nlink == 0) return stale("it was replaced");
  if (!request.truncate) return {};
  if (known && clock_.monotonic_ns() - object->moved_ns.load(std::memory_order_relaxed) < kMovedNs) return stale("it was renamed");
  if (still_written_by_other(*object, caller.thread_id)) return stale("another thread is writing it");
  take_over();
  return {};
}

bool StoreImpl::told_stale(const OpenRequest& request, const Caller& caller) {
  StaleOpens::Released released;
  const bool told = stale_opens_.tell_unless_blind(caller.thread_id, told_of(request), released);
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
  if (!told_stale(request, caller)) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
  return fail(Code::kStale, fmt::format("object {} was removed; look its name up again", id.value));
}

// --- lingering ---

// names_mutex_ held exclusively. False: there is no room for it, or nobody to end it.
bool StoreImpl::linger(const ObjectPtr& replaced) {
  if (!background_ || !replaced->is_regular() || pool_->under_pressure()) return false;
  if (space_.free_bytes() < space_.limit_bytes() / 8) return false;
  const uint64_t most = std::min(kMaxLingerBytes, pool_->limit_bytes() / 4);
  uint64_t bytes = 0;
  {
    const auto lock = replaced->lock();
    bytes = replaced->size_bytes;
    if (bytes > most || std::exchange(replaced->lingering, true)) return bytes <= most;
  }
  while (lingering_.size() >= kMaxLingering || lingering_bytes_ + bytes > most) end_oldest_lingering();
  lingering_.push_back({replaced, clock_.monotonic_ns() + kLingerNs, bytes});
  lingering_bytes_ += bytes;
  return true;
}

// names_mutex_ held exclusively. As keep_for_repeat(), for callers that cannot be told apart.
void StoreImpl::linger_for_unknown(const ObjectPtr& object) {
  if (!background_) return;
  {
    const auto lock = object->lock();
    if (std::exchange(object->lingering, true)) return;
  }
  while (lingering_.size() >= kMaxLingering) end_oldest_lingering();
  lingering_.push_back({object, clock_.monotonic_ns() + kLingerNs, 0});
}

// names_mutex_ held exclusively.
void StoreImpl::end_oldest_lingering() {
  Lingering ended = std::move(lingering_.front());
  lingering_.pop_front();
  lingering_bytes_ -= ended.bytes;
  {
    const auto lock = ended.object->lock();
    ended.object->lingering = false;
  }
  forget_if_idle(ended.object);
}

// names_mutex_ held exclusively, and the object's. What was just written under a name that may be temporary stays in the
// table, which alone knows who wrote it and that it was never renamed.
bool StoreImpl::keep_for_rename(const ObjectPtr& object) {
  if (object->published || !object->is_regular() || object->writer_thread == 0) return false;
  const int64_t until_ns = object->last_write_ns + kAboutToRenameNs;
  if (object->last_write_ns == 0 || until_ns <= clock_.monotonic_ns()) return false;
  if (object->kept_for_rename) return true;
  if (!background_ || kept_for_rename_.size() >= kMaxKeptForRename) return false;
  object->kept_for_rename = true;
  kept_for_rename_.push_back({object, until_ns, 0});
  return true;
}

// Called by the keeper.
void StoreImpl::end_lingering(bool all) {
  std::unique_lock lock(names_mutex_);
  const int64_t now = clock_.monotonic_ns();
  while (!lingering_.empty() && (all || lingering_.front().until_ns <= now)) end_oldest_lingering();
  StaleOpens::Released released;
  stale_opens_.expire(all, released);
  let_go_locked(released);
  while (!kept_for_rename_.empty() && kept_for_rename_.front().until_ns <= now) {
    const ObjectPtr object = std::move(kept_for_rename_.front().object);
    kept_for_rename_.pop_front();
    {
      const auto object_lock = object->lock();
      object->kept_for_rename = false;
    }
    forget_if_idle(object);
  }
}

}  // namespace kvcachefs
