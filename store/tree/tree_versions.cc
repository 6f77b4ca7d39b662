// Several writers of one temporary name: each has its own version, and a rename moves the caller's.
#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "store/base/log.h"
#include "store/tree/tree.h"
#include "store/tree/tree_times.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

namespace {

// An older version of a temporary name that nobody renamed for this long was abandoned.
constexpr int64_t kVersionLeftNs = 60'000'000'000;

// A peer that had not read the journaled binding has given the name to an object that was born later. That peer states no removal, so all other nodes
// choose its object, and this node would go on with its versions.
bool has_lost(const Tree::View& tree, const DirtyName& name, const NameState& state) {
  if (!state.durable.valid() || (state.durable != state.child && !state.is_older_version(state.durable))) return false;
  const auto own = tree.view().own().index->find_name(name.parent, name.key.name);
  if (!own || !*own || (*own)->child != state.durable) return false;  // a batch under way changes it
  const auto seen = tree.view().find_name(name.parent, name.key.name);
  return seen && *seen && (*seen)->child != state.durable;
}

bool is_open_temporary(const Tree::View& tree, ObjectId id) {
  const ObjectPtr object = tree.live(id);
  if (!object || !object->temporary) return false;
  const auto lock = object->lock();
  return object->write_handles > 0;
}

// The older versions of which the thread has finished a newer one: it will not rename them any more.
std::vector<ObjectId> written_again(const Tree::View& tree, const NameState& state) {
  std::vector<ObjectId> found;
  std::vector<uint32_t> threads;  // that have finished one
  const auto look = [&](ObjectId id) {
    const ObjectPtr object = tree.live(id);
    if (!object || object->writer_thread == 0) return;
    if (std::ranges::find(threads, object->writer_thread) != threads.end()) found.push_back(id);
    const auto lock = object->lock();
    if (object->finished()) threads.push_back(object->writer_thread);
  };
  look(state.child);
  for (auto id = state.older_versions.rbegin(); id != state.older_versions.rend(); ++id) look(*id);
  return found;
}

}  // namespace

// --- choosing ---

bool Tree::View::has_versions(ObjectId parent, std::string_view name) const {
  if (!tree_->has_versions()) return false;
  const NameState* state = names().dirty(parent, name);
  return state != nullptr && !state->older_versions.empty();
}

// For a lookup: the version that the caller itself is writing, else the newest finished one.
ObjectId Tree::Write::choose_version_to_read(const NameState& state, uint32_t thread_id) {
  if (ObjectPtr newest = live(state.child); newest && newest->writer_process == process_of(thread_id)) return state.child;
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

// For a rename: the newest finished version of the caller's process (of its thread, if that has one), else the newest
// finished, else the newest that its maker has opened (clients rename before they close).
ObjectId Tree::Write::choose_version(const NameState& state, uint32_t thread_id) {
  const uint32_t process = process_of(thread_id);
  ObjectId best = state.child;
  int best_rank = -1;
  auto consider = [&](ObjectId id) {  // newest first
    ObjectPtr object = live(id);
    if (!object) return;
    int rank = object->writer_thread == thread_id ? 2 : object->writer_process == process ? 1 : 0;
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

// A file closed a moment ago and not renamed yet counts too: its writer is about to rename it. A file with file locks is no chunk, whatever
// its name.
bool Tree::View::still_written_by_other(Object& object, uint32_t thread_id) const {
  if (!object.temporary || object.locked.load(std::memory_order_relaxed)) return false;
  if (object.published && object.durable) return false;
  // Processes that cannot be told apart (of a PID namespace that is not visible here) get the POSIX behaviour.
  if (object.writer_thread == 0 || thread_id == 0) return false;
  const auto lock = object.lock();
  // With several writers a rename may have taken another's version, whose writer needs this one.
  if ((object.writer_thread == thread_id && !object.contended) || object.nlink != 1) return false;
  if (object.unflushed_handles > 0) return true;
  return !object.published && object.last_write_ns != 0 &&
         tree_->parts_.clock.monotonic_ns() - object.last_write_ns < kAboutToRenameNs && !writer_has_ended(object);
}

bool Tree::View::is_one_of_several(ObjectId id) const {
  const auto found = tree_->table_.find(id);
  return found != tree_->table_.end() && found->second->contended && !found->second->published;
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

// A peer removed or replaced `taken`, which the journal has or had under the name. Removes it and the versions before it, except those being written,
// and those that a process closed a moment ago without writing another since: it is about to rename them. `taken` itself is kept so only beside other
// versions, for a rename would take one of theirs. Where it is alone it is kept only if it is open for writing under a temporary name, which writers of
// two nodes may use for a file each. It goes once it need not be kept, and does not come back: what is kept has the name in RAM alone, and the next
// commit journals that the name went. Returns the versions that lose the name: the caller counts the links.
std::vector<ObjectId> Tree::Write::take_versions(NameState& state, ObjectId taken, bool at_the_end) {
  std::vector<ObjectId> versions = state.older_versions;
  versions.push_back(state.child);
  const auto last = std::ranges::find(versions, taken);
  const ObjectId kept_before = std::exchange(state.taken_later, ObjectId{});
  if (last == versions.end()) return {};  // it was renamed, or its name was taken by another
  const int64_t now_ns = tree().parts_.clock.monotonic_ns();
  const auto may_be_renamed = [&](std::vector<ObjectId>::iterator version) {
    const ObjectPtr object = live(*version);
    if (!object || object->published || is_abandoned(*version, kAboutToRenameNs)) return false;
    const bool wrote_another = std::any_of(version + 1, versions.end(), [&](ObjectId later) {
      const ObjectPtr other = live(later);
      return other && other->writer_process == object->writer_process;
    });
    const auto lock = object->lock();
    if (object->write_handles > 0 || object->unflushed_handles > 0) return true;
    return !at_the_end && !wrote_another && object->writer_thread != 0 && object->last_write_ns != 0 &&
           now_ns - object->last_write_ns < kAboutToRenameNs && !writer_has_ended(*object);
  };
  std::vector<ObjectId> gone;
  for (auto each = versions.begin(); each != last; ++each)
    if (!may_be_renamed(each)) gone.push_back(*each);
  const bool others_stay = gone.size() + 1 < versions.size();
  if (!(others_stay || kept_before == taken || is_open_temporary(*this, taken)) || !may_be_renamed(last)) gone.push_back(taken);
  std::erase_if(versions, [&](ObjectId id) { return std::ranges::find(gone, id) != gone.end(); });
  for (const ObjectId id : versions)
    if (id == taken || id == kept_before) state.taken_later = id;  // the newer one: those before it are looked at with it
  state.erase_durable |= std::ranges::find(gone, state.durable) != gone.end() || state.durable == taken;
  if (versions.empty()) {
    state.leave_to_peers();
  } else {
    state.child = versions.back();
    versions.pop_back();
  }
  state.older_versions = std::move(versions);
  return gone;
}

// Whether a peer removed all that this node has in the directory: it goes once it is empty, like one that this node has named nothing in. What was given
// there since keeps it.
Result<bool> Tree::Write::has_only_taken(ObjectId directory) const {
  constexpr size_t kPageNames = 64;
  for (uint64_t after = 0;;) {
    KVC_ASSIGN(const auto page, names().list_own(directory, after, kPageNames));
    if (page.empty()) return true;
    for (const NameEntry& entry : page) {
      after = entry.cookie;
      const NameState* const state = names().dirty(directory, entry.name);
      if (!own_->adopted_.contains(entry.child) && (state == nullptr || state->taken_later != entry.child)) return false;
    }
  }
}

// Takes journaled bindings that lost against a peer's, as if that peer had stated their removal. `given`: looks only at names that this batch, which was
// applied, gives. Null: at all names. A binding that is not journaled yet is left: it may win once it is, and is looked at then.
void Tree::Write::take_lost_versions(const Batch* given, bool at_the_end) {
  if (!tree().has_versions_ || view().is_alone()) return;
  std::unordered_set<std::string_view> looked_at;
  if (given != nullptr)
    for (const Record& record : given->records)
      if (const auto* named = std::get_if<NameRecord>(&record)) looked_at.insert(named->name);
  if (given != nullptr && looked_at.empty()) return;
  std::vector<std::pair<DirtyName, std::vector<ObjectId>>> taken;
  names().for_each_with_versions([&](const DirtyName& name, NameState& state) {
    if ((given != nullptr && !looked_at.contains(name.key.name)) || !has_lost(*this, name, state)) return;
    taken.emplace_back(name, take_versions(state, state.durable, at_the_end));
  });
  for (const auto& [name, gone] : taken) {
    tree().parts_.records.accept(kNameRecordBytes + name.key.name.size());
    const auto listed = names().edit_own(name.parent, name.key.name);  // for the next commit
    if (!listed) log::warn("{}: {}", entry_text(name.parent, name.key.name), listed.error().message);
    for (const ObjectId id : gone) {
      if (const auto object = get(id)) lose_name(*object, name.parent, name.key.name, !at_the_end);
      forget_removed(id);
    }
  }
  if (!taken.empty()) tree().parts_.dirty.wake();
}

void Tree::Write::settle(const DirtyName& name, ObjectId durable) {
  NameState* const state = names().state(name);
  if (const ObjectPtr object = tree().parts_.shared && durable.valid() ? live(durable) : nullptr; object && object->temporary && !object->published) tree().note_may_hide();
  if (state != nullptr && !view().is_alone() && durable.valid() && state->child == durable && is_open_temporary(*this, durable)) {
    state->written = durable;
    tree().has_versions_ = true;
    names().note_several(name.parent, name.key.name);
  }
  names().settle(name, durable);
}

// Drops older versions that nobody renamed, except the newest finished one, which the name means until a newer one is finished;
// and a newest version that was never opened. `all`: at the end of the mount, also those written a moment ago; but not beside a
// newer one that is not finished, for then the name means one of them. `room_is_wanted`: those whose process has ended, or whose thread finished a newer
// one, go at once, for they keep room and cannot be evicted.
void Tree::Write::sweep_versions(bool all, bool room_is_wanted) {
  take_lost_versions(nullptr, all);
  std::vector<std::pair<DirtyName, ObjectId>> dropped;
  std::vector<ObjectId> not_renamed;  // by the threads that wrote them
  bool some_left = false;
  const int64_t now = tree().parts_.clock.monotonic_ns();
  names().for_each_with_versions([&](const DirtyName& name, NameState& state) {
    if (state.taken_later.valid()) {
      for (const ObjectId id : take_versions(state, state.taken_later, all)) {
        tree().parts_.records.accept(kNameRecordBytes + name.key.name.size());
        dropped.emplace_back(name, id);
      }
      if (!state.taken_later.valid()) dropped.emplace_back(name, ObjectId{});  // the name can be settled
    }
    if (state.written.valid() && (state.written != state.child || !is_open_temporary(*this, state.written))) {
      state.written = {};
      tree().note_may_hide();
      dropped.emplace_back(name, ObjectId{});
    }
    while (!state.older_versions.empty() && is_abandoned(state.child, all ? 0 : kAboutToRenameNs)) {
      dropped.emplace_back(name, std::exchange(state.child, state.older_versions.back()));
      state.older_versions.pop_back();
    }
    const ObjectId kept = version_to_keep(state);
    const bool now_or_never = all && kept == state.child;
    if (room_is_wanted) std::ranges::copy(written_again(*this, state), std::back_inserter(not_renamed));
    std::erase_if(state.older_versions, [&](ObjectId id) {
      if (id == kept) return false;
      ObjectPtr object = live(id);
      if (!object) return true;
      const bool is_left = now_or_never || std::ranges::find(not_renamed, id) != not_renamed.end() || (room_is_wanted && writer_has_ended(*object));
      const auto object_lock = object->lock();
      if (object->handles > 0) return false;
      if (!is_left && now - object->last_write_ns < kVersionLeftNs) return false;
      dropped.emplace_back(name, id);
      return true;
    });
    some_left |= state.has_versions();
  });
  while (auto over = tree().lost_.take_over(all ? INT64_MAX : now)) end_lost(*over);
  tree().has_versions_ = some_left || !tree().lost_.empty();
  for (auto& [name, id] : dropped) {
    if (tree().adopted_.contains(name.parent)) tree().adopted_lost_names_ = true;
    const bool may_be_renamed = !all && std::ranges::find(not_renamed, id) == not_renamed.end();
    if (const ObjectPtr object = live(id)) lose_name(object, name.parent, name.key.name, may_be_renamed);
    names().put_back_pending(name);
  }
  if (!dropped.empty()) tree().parts_.dirty.wake();
}

}  // namespace kvcachefs
