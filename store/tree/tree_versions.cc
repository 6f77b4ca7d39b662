// Several writers of one temporary name: each has a version of its own, and a rename takes the caller's.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "store/tree/tree.h"
#include "store/tree/tree_times.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

namespace {

// An older version of a temporary name that nobody renamed for so long was left behind.
constexpr int64_t kVersionLeftNs = 60'000'000'000;

bool has_ended(uint32_t thread_id) { return kill(static_cast<pid_t>(thread_id), 0) != 0 && errno == ESRCH; }

}  // namespace

uint32_t Tree::Write::writer_process(Object& object) {
  if (object.writer_process == 0) object.writer_process = process_of(object.writer_thread);
  return object.writer_process;
}

// --- choosing ---

bool Tree::View::has_versions(ObjectId parent, std::string_view name) const {
  const NameState* state = names().dirty(parent, name);
  return state != nullptr && !state->older_versions.empty();
}

// For a lookup: what the caller itself is making, else the newest that reads whole.
ObjectId Tree::Write::choose_version_to_read(const NameState& state, uint32_t thread_id) {
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
// finished, else the newest that its maker has opened (clients rename before they close).
ObjectId Tree::Write::choose_version(const NameState& state, uint32_t thread_id) {
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

ObjectId Tree::View::version_to_keep(const NameState& state) const {
  if (state.older_versions.empty()) return state.child;
  auto finished = [&](ObjectId id) {
    ObjectPtr object = live(id);
    if (!object) return true;
    const auto lock = object->lock();
    return object->finished();
  };
  if (finished(state.child)) return state.child;
  auto newest = std::find_if(state.older_versions.rbegin(), state.older_versions.rend(), finished);
  return newest == state.older_versions.rend() ? ObjectId{} : *newest;
}

// Closed a moment ago and not renamed yet counts too: its writer is about to rename it. What is locked is no chunk, whatever its
// name.
bool Tree::View::still_written_by_other(Object& object, uint32_t thread_id) const {
  if (!object.temporary || object.locked.load(std::memory_order_relaxed)) return false;
  if (object.published && object.durable) return false;
  // Processes that cannot be told apart (of a PID namespace that is not visible here) have what POSIX gives them.
  if (object.writer_thread == 0 || thread_id == 0) return false;
  const auto lock = object.lock();
  // Where several write, a rename may have taken another's version, whose writer needs this one.
  if ((object.writer_thread == thread_id && !object.contended) || object.nlink != 1) return false;
  if (object.unflushed_handles > 0) return true;
  return !object.published && object.last_write_ns != 0 &&
         tree_->parts_.clock.monotonic_ns() - object.last_write_ns < kAboutToRenameNs && !has_ended(object.writer_thread);
}

bool Tree::View::is_one_of_several(ObjectId id) const {
  ObjectPtr object = live(id);
  return object && object->contended && !object->published;
}

// --- making and giving up ---

ObjectPtr Tree::Write::version_awaiting_open(ObjectId parent, std::string_view name, uint32_t thread_id) const {
  const NameState* state = names().dirty(parent, name);
  if (state == nullptr) return nullptr;
  std::vector<ObjectId> versions = state->older_versions;
  versions.push_back(state->child);
  for (ObjectId id : versions) {
    ObjectPtr object = live(id);
    if (!object) continue;
    const auto lock = object->lock();
    if (object->awaiting_open && object->writer_thread == thread_id) return object;
  }
  return nullptr;
}

void Tree::Write::add_version(Namespace::Edit& state, ObjectId parent, std::string_view name, const ObjectPtr& object,
                              const ObjectPtr& fresh) {
  writer_process(*object);
  writer_process(*fresh);
  object->contended = fresh->contended = true;
  {
    const auto lock = fresh->lock();
    fresh->nlink = 1;
  }
  state->older_versions.push_back(state->child);
  state->child = fresh->id;
  tree().has_versions_ = true;
  names().note_several(parent, name);
  add(fresh);
}

// Its maker was told of it and did not open it in all that time: it will not.
bool Tree::View::is_abandoned(ObjectId id, int64_t for_ns) const {
  ObjectPtr object = live(id);
  if (!object) return false;
  const auto lock = object->lock();
  return object->awaiting_open && object->handles == 0 && tree_->parts_.clock.monotonic_ns() - object->last_write_ns >= for_ns;
}

// Older versions that nobody renamed; not the newest that reads whole, which the name means until a newer one is finished;
// and a newest that was never opened. `all`: at the end of the mount, also what was written a moment ago; but not beside a
// newer one that is not finished, for then the name means one of them.
void Tree::Write::sweep_versions(bool all) {
  std::vector<std::pair<DirtyName, ObjectId>> dropped;
  bool some_left = false;
  const int64_t now = tree().parts_.clock.monotonic_ns();
  names().for_each_with_versions([&](const DirtyName& name, NameState& state) {
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
  tree().has_versions_ = some_left;
  for (auto& [name, id] : dropped) {
    if (ObjectPtr object = live(id)) {
      change_links(object, -1);
      forget_if_idle(object);
    }
    names().put_back_pending(name);
  }
  if (!dropped.empty()) tree().parts_.dirty.wake();
}

}  // namespace kvcachefs
