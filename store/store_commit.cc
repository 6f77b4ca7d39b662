// The committer: one thread that turns sealed bodies, changed attributes and changed names into one journal batch, applies it
// to the index, and then answers who waited. All requests that queue up meanwhile go into one batch (group commit).
//
// Invariant 3 is kept here: a body is written before its SealedBody reaches this file, and under sync the data is
// synced before the record, the record before the answer.
#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {
// A batch is one frame of the journal, at most 32 MiB: some 100 bytes an item.
constexpr size_t kBatchAttributes = 100'000;
constexpr size_t kBatchNames = 100'000;
}  // namespace

void StoreImpl::commit(CommitRequest request) {
  {
    std::lock_guard lock(commit_mutex_);
    commit_queue_.push_back(std::move(request));
    committing_.fetch_add(1);
  }
  commit_ready_.notify_one();
}

bool StoreImpl::commit_step() {
  Commit commit;
  {
    std::lock_guard lock(commit_mutex_);
    commit.requests.swap(commit_queue_);
  }
  if (commit.requests.empty()) return false;
  const size_t count = commit.requests.size();
  Status status = sync_data(commit);
  if (status) {
    build_batch(commit);
    if (!commit.batch.records.empty()) {
      const auto after = journal_->append(commit.batch);
      if (after) {
        counters_.journal_batches.fetch_add(1, std::memory_order_relaxed);
        journal_bytes_.store(journal_->bytes_since_rotate(), std::memory_order_relaxed);
        Status applied = apply_committed(commit, *after);
        if (!applied) log::error("index: {}", applied.error().message);
        if (commit.sync) status = journal_->sync();
      } else {
        status = std::unexpected(after.error());
        give_up(commit, status);
      }
    } else if (commit.sync) {
      status = journal_->sync();
    }
    if (status && commit.sync_all) status = mark_synced();
    if (status && commit.sync) counters_.syncs.fetch_add(1, std::memory_order_relaxed);
  } else {
    give_up(commit, status);
  }
  if (!status) {
    counters_.errors_journal.fetch_add(1, std::memory_order_relaxed);
    log::error("journal: {}", status.error().message);
    set_trouble(status);
  }
  committing_.fetch_sub(count);
  requeue_deferred();
  for (CommitRequest& request : commit.requests)
    if (request.done) request.done(status);
  return true;
}

Status StoreImpl::sync_data(Commit& commit) {
  std::vector<ExtentId> extents;
  for (const CommitRequest& request : commit.requests) {
    commit.sync |= request.sync || request.sync_all;
    commit.sync_all |= request.sync_all;
    if (!request.sync) continue;
    extents.insert(extents.end(), request.extents.begin(), request.extents.end());
    for (const SealedBody& sealed : request.bodies)  // also a place that is shared: it may not be synced either
      if (sealed.body.place.extent.valid()) extents.push_back(sealed.body.place.extent);
  }
  if (commit.sync_all) {
    data_bytes_unsynced_.store(0, std::memory_order_relaxed);
    return extents_->sync_all();
  }
  if (!commit.sync) return {};
  return extents_->sync(extents);
}

// After sync_all: everything journaled before this, and its data, is on the medium. Recovery need not verify it, and the
// index may hold it (an index ahead of the data would trust bodies that a power cut took).
Status StoreImpl::mark_synced() {
  Batch mark;
  mark.stamp = stamps_.next();
  mark.records.emplace_back(SyncedRecord{});
  KVC_ASSIGN(JournalPosition after, journal_->append(mark));
  auto freed = index_->apply(mark, after);
  if (!freed) return std::unexpected(std::move(freed).error());
  index_->freeze();
  return journal_->sync();  // the index must not reach past the end of what is on the medium
}

// --- building ---

void StoreImpl::build_batch(Commit& commit) {
  std::unique_lock lock(names_mutex_);
  commit.batch.stamp = stamps_.next();
  std::unordered_set<ObjectId> put;
  add_bodies(commit, put);
  add_attributes(commit, put);
  add_names(commit, put);
  for (CommitRequest& request : commit.requests)
    for (SuccessorsRecord& row : request.successors) commit.batch.records.emplace_back(std::move(row));
}

// names_mutex_ held. The body does not go into the journal: its object is gone, or what it shares is.
void StoreImpl::drop_body(SealedBody& sealed) {
  if (!sealed.shared_with.valid() && !sealed.body.quarantined && !sealed.snapshot.spill) give_back({}, sealed.body.place);
  ObjectPtr object = std::move(sealed.snapshot.object);
  sealed.snapshot = {};
  {
    std::lock_guard lock(object->mutex);
    object->replaced_checked = true;
  }
  abandon_seal(object);
  forget_if_idle(object);
}

void StoreImpl::add_bodies(Commit& commit, std::unordered_set<ObjectId>& put) {
  for (CommitRequest& request : commit.requests) {
    for (SealedBody& sealed : request.bodies) {
      const ObjectPtr& object = sealed.snapshot.object;
      bool drop = object->nlink == 0;
      if (sealed.shared_with.valid() && !drop) {
        // The shared place must still be the other's, and the other must go with this very batch.
        auto other = index_->find_object(sealed.shared_with);
        drop = !other || !*other || (*other)->body.place != sealed.body.place;
        if (ObjectPtr alive = live(sealed.shared_with); alive && alive->nlink > 0) drop = true;
      }
      if (drop) {
        drop_body(sealed);
        continue;
      }
      std::lock_guard lock(object->mutex);
      PutRecord record;
      record.object.id = object->id;
      record.object.attributes = object->attributes;
      record.object.body = sealed.body;
      commit.batch.records.emplace_back(std::move(record));
      commit.attributes.emplace_back(object, object->attributes_version);
      put.insert(object->id);
    }
    std::erase_if(request.bodies, [](const SealedBody& sealed) { return sealed.snapshot.object == nullptr; });
  }
}

void StoreImpl::add_attributes(Commit& commit, std::unordered_set<ObjectId>& put) {
  std::vector<ObjectPtr> changed;
  {
    std::lock_guard lock(dirty_mutex_);
    changed.swap(dirty_attributes_);
  }
  if (changed.size() > kBatchAttributes) {  // in order: directories come before what is in them
    std::lock_guard lock(dirty_mutex_);
    dirty_attributes_.insert(dirty_attributes_.begin(), std::make_move_iterator(changed.begin() + kBatchAttributes),
                             std::make_move_iterator(changed.end()));
    changed.resize(kBatchAttributes);
    kick_bulk();
  }
  for (ObjectPtr& object : changed) {
    std::lock_guard lock(object->mutex);
    if (object->nlink == 0) {
      object->attributes_durable = object->attributes_version;
      continue;
    }
    if (put.contains(object->id)) continue;
    if (object->durable) {
      commit.batch.records.emplace_back(AttributesRecord{object->id, object->attributes});
    } else if (!object->is_regular()) {
      PutRecord record;
      record.object.id = object->id;
      record.object.attributes = object->attributes;
      record.object.body = object->base;
      commit.batch.records.emplace_back(std::move(record));
      put.insert(object->id);
    } else {
      // Comes with its body. Marked clean so that a later change lists it again.
      object->attributes_durable = object->attributes_version;
      continue;
    }
    commit.attributes.emplace_back(object, object->attributes_version);
  }
}

// What the journal says a name is: its object; while several write it the newest finished version, for the mount may end
// before the last of them does. names_mutex_ held.
ObjectId StoreImpl::version_to_keep(const NameState& state) const {
  if (state.older_versions.empty()) return state.child;
  auto finished = [&](ObjectId id) {
    ObjectPtr object = live(id);
    if (!object) return true;
    std::lock_guard lock(object->mutex);
    return object->finished();
  };
  if (finished(state.child)) return state.child;
  auto newest = std::find_if(state.older_versions.rbegin(), state.older_versions.rend(), finished);
  return newest == state.older_versions.rend() ? ObjectId{} : *newest;
}

void StoreImpl::add_names(Commit& commit, const std::unordered_set<ObjectId>& put) {
  auto known = [&](ObjectId id) {  // to the journal, once this batch is in it
    ObjectPtr object = live(id);
    return !object || object->durable || put.contains(id);
  };
  // Names are given before others are taken: were a batch to end in between, an object has two names, not none.
  size_t count = 0;
  std::vector<DirtyName> pending = names_->take_pending();
  std::stable_partition(pending.begin(), pending.end(), [&](const DirtyName& name) {
    const NameState* state = names_->state(name);
    return state != nullptr && state->child.valid();
  });
  for (DirtyName& name : pending) {
    NameState* state = names_->state(name);
    if (state == nullptr) continue;
    if (++count > kBatchNames) {
      names_->put_back_pending(std::move(name));
      continue;
    }
    const ObjectId named = version_to_keep(*state);
    const bool ready = named.valid() && known(named) && known(name.parent);
    if (ready) {
      if (named != state->durable) commit.batch.records.emplace_back(NameRecord{name.parent, name.key.name, named});
      commit.names.emplace_back(std::move(name), named);
    } else if (state->durable.valid() && (!state->child.valid() || state->erase_durable)) {
      commit.batch.records.emplace_back(UnnameRecord{name.parent, name.key.name, state->durable});
      commit.names.emplace_back(std::move(name), ObjectId{});
    } else if (state->child.valid()) {
      names_->put_back_pending(std::move(name));  // its body is not sealed yet
    } else {
      commit.names.emplace_back(std::move(name), ObjectId{});  // came and went between two commits
    }
  }
}

void StoreImpl::give_up(Commit& commit, const Status& why) {
  std::unique_lock lock(names_mutex_);
  for (auto& [name, durable] : commit.names) names_->put_back_pending(std::move(name));
  for (auto& [object, version] : commit.attributes) {
    std::lock_guard object_lock(object->mutex);
    std::lock_guard dirty_lock(dirty_mutex_);
    dirty_attributes_.push_back(object);
  }
  for (CommitRequest& request : commit.requests)
    for (SealedBody& sealed : request.bodies) {
      if (!sealed.shared_with.valid() && !sealed.snapshot.spill) give_back({}, sealed.body.place);
      abandon_seal(sealed.snapshot.object);
    }
  log::error("{} records could not be journaled and wait in memory: {}", commit.batch.records.size(), why.error().message);
}

// --- settling ---

void StoreImpl::settle_attributes(const ObjectPtr& object, uint64_t version) {
  std::lock_guard lock(object->mutex);
  object->attributes_durable = version;
  if (object->attributes_version == version) return;
  std::lock_guard dirty_lock(dirty_mutex_);
  dirty_attributes_.push_back(object);
}

void StoreImpl::settle_body(SealedBody& sealed) {
  const ObjectPtr object = sealed.snapshot.object;
  bool clean_units = false;
  {
    std::lock_guard lock(object->mutex);
    object->sealing = false;
    object->base = std::move(sealed.body);
    object->base_valid_bytes = object->raw ? 0 : std::min(sealed.snapshot.size_bytes, object->shrunk_to_bytes);
    object->sealed_version = sealed.snapshot.content_version;
    // A unit whose block is still the one that was written is clean now; any other is newer.
    for (size_t index = 0; index < object->units.size(); ++index) {
      Unit& unit = object->units[index];
      const bool known = index < sealed.snapshot.units.size();
      if (unit.block && known && unit.block == sealed.snapshot.units[index].block) unit.dirty = false;
      unit.spilled = false;  // the spill file is the base now
      clean_units |= unit.block && !unit.dirty;
    }
    if (sealed.snapshot.spill) {
      object->spill.reset();
      object->spill_extent = {};
    }
    if (!object->content_dirty()) {
      space_.release(std::exchange(object->reserved_bytes, 0));
      object->replaced_checked = false;
    }
  }
  object->replaced = {};
  if (clean_units) note_clean(object);
}

Status StoreImpl::apply_committed(Commit& commit, JournalPosition after) {
  // Without names_mutex_: until they are settled below, names and objects of the batch are answered from RAM.
  auto freed = index_->apply(commit.batch, after);
  std::vector<Snapshot> done_with;  // their blocks are given back after the lock
  std::unique_lock lock(names_mutex_);
  // The journal has it: the RAM view goes on also when the index could not take it (it is rebuilt then).
  std::vector<ObjectPtr> touched;
  for (CommitRequest& request : commit.requests)
    for (SealedBody& sealed : request.bodies) {
      touched.push_back(sealed.snapshot.object);
      settle_body(sealed);
      done_with.push_back(std::move(sealed.snapshot));
      touched.back()->durable = true;
    }
  for (auto& [object, version] : commit.attributes) {
    object->durable = true;
    settle_attributes(object, version);
    touched.push_back(object);
  }
  for (auto& [name, durable] : commit.names) {
    if (NameState* state = names_->state(name)) {
      if (ObjectPtr before = live(state->durable)) touched.push_back(std::move(before));
      if (!durable.valid()) state->erase_durable = false;
      if (state->child.valid() && state->child != durable) names_->put_back_pending(name);
    }
    names_->settle(name, durable);
  }
  for (const ObjectPtr& object : touched)
    if (live(object->id) == object) forget_if_idle(object);
  if (!freed) {
    counters_.errors_index.fetch_add(1, std::memory_order_relaxed);
    return std::unexpected(std::move(freed).error());
  }
  space_.set_live(index_->totals().live_bytes);
  for (const FreedPlace& place : *freed) {
    // An older version of a name lost its record to a newer one, but may be renamed yet: it lives in RAM only from now on.
    if (ObjectPtr object = live(place.object); object && object->nlink > 0 && object->base.place == place.place) object->durable = false;
    if (auto left = leaving_.find(place.object); left != leaving_.end()) {
      space_.remove_leaving(left->second);
      leaving_.erase(left);
    }
  }
  if (freed->empty()) return {};
  std::lock_guard keeper(keeper_mutex_);
  for (FreedPlace& place : *freed) {
    freed_bytes_ += align_up(place.place.length, kBlockBytes);
    freed_.push_back(std::move(place));
  }
  space_.set_dead(freed_bytes_);
  keeper_has_work_ = true;
  return {};
}

}  // namespace kvcachefs
