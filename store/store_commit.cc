// The committer: one thread that turns sealed bodies, changed attributes and changed names into one journal batch, applies it
// to the index, and then answers who waited. All requests that queue up meanwhile go into one batch (group commit).
//
// Invariant 3 is kept here: a body is written before its SealedBody reaches this file, and under sync the data is
// synced before the record, the record before the answer.
#include <sys/stat.h>

#include <algorithm>
#include <future>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {

// A batch is one frame of the journal, at most 32 MiB. One more record, or an estimate that is a little low, does no harm.
constexpr uint64_t kBatchBytes = 8 * kMiB;
constexpr uint64_t kNamelessBytes = 64;  // about, of the removal of an object without a name

uint64_t bytes_of(const Attributes& attributes) {
  uint64_t bytes = 128;
  for (const Xattr& xattr : attributes.xattrs) bytes += 16 + xattr.name.size() + xattr.value.size();
  return bytes;
}
uint64_t bytes_of(const Body& body) { return 64 + 8 * body.checksums.size() + body.inline_bytes.size(); }
uint64_t bytes_of(const DirtyName& name) { return 32 + name.key.name.size(); }
// Which goes with the object.
bool lies_in_spill_file(const SealedBody& sealed) {
  return sealed.snapshot.spill && sealed.body.place.extent == sealed.snapshot.spill_extent;
}

uint64_t bytes_of(const SuccessorsRecord& row) { return 32 + 16 * row.successors.size(); }

}  // namespace

bool Commit::full() const { return batch_bytes >= kBatchBytes; }

bool StoreImpl::commit_step() {
  Commit commit;
  commit.requests = commits_.take();
  if (commit.requests.empty()) return false;
  const size_t count = commit.requests.size();
  Status status = sync_data(commit);
  take_rows(commit);
  if (status) take_nameless(commit);
  while (status && build_batch(commit)) status = journal_batch(commit);
  Status marked;
  if (status) {
    if (commit.sync) status = sync_journal();
    if (status && commit.sync) kill_point("journal-synced");
    if (status && commit.sync_all) marked = may_mark();
    if (status && commit.sync_all && marked) status = mark_synced();
    if (status && commit.sync) counters_.syncs.fetch_add(1, std::memory_order_relaxed);
  } else {
    give_up(commit, status);
  }
  health_.report(Health::Of::kJournal, status);
  record_space_->settle(commit.accepted_bytes, status.has_value());
  resume_records();
  if (!status) {
    counters_.errors_journal.fetch_add(1, std::memory_order_relaxed);
    log::error("journal: {}", status.error().message);
    dirty_.wake();  // to try again
  }
  accesses_->not_kept(commit.early_rows);
  for (const CommitRequest& request : commit.requests) dead_.packs_closed(request.closed);  // all bodies in them are committed or given up
  commits_.settled(count);
  urgent_.requeue_deferred();
  if (!resumer_.waiters().nobody_waits()) resumer_.memory_came_back();  // what was journaled can be given up
  for (CommitRequest& request : commit.requests) {
    if (!request.done) continue;
    if (status && request.sync_all && !marked) request.done(marked);
    else request.done(status && request.sync ? extents_->told_of_raw(request.extents) : status);
  }
  return true;
}

Status StoreImpl::commit_and_wait(CommitRequest request) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = promise->get_future();
  request.done = [promise](Status status) { promise->set_value(std::move(status)); };
  commits_.add(std::move(request));
  if (!committer_runs_.load())
    while (commit_step()) {
    }
  return answer.get();
}

Status StoreImpl::journal_batch(Commit& commit) {
  JournalPosition after;
  if (!commit.batch.records.empty()) {
    kill_point("batch-made");
    KVC_ASSIGN(after, append_to_journal(commit.batch));
    kill_point("batch-appended");
    if (commit.replaces) kill_point("replacement-appended");
    if (commit.removes) kill_point("removal-appended");
    counters_.journal_batches.fetch_add(1, std::memory_order_relaxed);
    journal_bytes_.store(journal_->bytes_since_rotate(), std::memory_order_relaxed);
  }
  Status applied = apply_committed(commit, after);
  if (!applied) log::error("index: {}", applied.error().message);
  kill_point("batch-applied");
  return {};
}

void StoreImpl::note_full(const Error& error) {
  counters_.errors_journal.fetch_add(1, std::memory_order_relaxed);
  log::warn("{}; the journal takes of the room that is kept for it, {} are left", error.message, format_size(reserve_->held_bytes()));
}

Result<JournalPosition> StoreImpl::append_to_journal(const Batch& batch) {
  return with_reserve([&] { return journal_->append(batch); });
}

Status StoreImpl::sync_journal() {
  return with_reserve([&] { return journal_->sync(); });
}

Status StoreImpl::sync_data(Commit& commit) {
  std::vector<ExtentId> extents;
  for (CommitRequest& request : commit.requests) {
    commit.sync |= request.sync || request.sync_all;
    commit.sync_all |= request.sync_all;
    if (!request.sync) continue;
    for (const SealedBody& sealed : request.bodies)  // also a place that is shared: it may not be synced either
      if (sealed.body.place.extent.valid()) request.extents.push_back(sealed.body.place.extent);
    extents.insert(extents.end(), request.extents.begin(), request.extents.end());
  }
  if (commit.sync_all) {
    data_bytes_unsynced_.store(0, std::memory_order_relaxed);
    KVC_TRY(extents_->sync_all());
  }
  if (commit.sync && !(commit.sync_all && extents.empty())) KVC_TRY(extents_->sync(extents));
  if (commit.sync) kill_point("data-synced");
  return {};
}

// After sync_all: everything journaled before this, and its data, is on the medium. Recovery need not verify it, and the
// index may hold it (an index ahead of the data would trust bodies that a power cut took).
Status StoreImpl::mark_synced() {
  Batch mark;
  mark.stamp = stamps_.next();
  mark.records.emplace_back(SyncedRecord{});
  KVC_ASSIGN(JournalPosition after, append_to_journal(mark));
  kill_point("mark-appended");
  auto freed = apply_to_index(mark, after);
  if (!freed) return std::unexpected(std::move(freed).error());
  KVC_TRY(sync_journal());  // the index must not reach past the end of what is on the medium
  index_->freeze();
  unmarked_.clear();
  kill_point("mark-synced");
  return {};
}

// --- building ---

// The next batch; false if nothing is left. The names and attributes that wait are taken with the first one, under the same
// lock that it is made under.
bool StoreImpl::build_batch(Commit& commit) {
  Tree::Write tree = tree_->write();
  if (!commit.taken) take_waiting(tree, commit);
  commit.batch = Batch{stamps_.next(), {}};
  commit.batch_bytes = 0;
  commit.replaces = commit.removes = false;
  commit.sealed.clear();
  commit.attributes.clear();
  commit.names.clear();
  commit.dropped.clear();
  add_bodies(tree, commit);
  add_attributes(tree, commit);
  add_names(tree, commit);
  add_rows(tree, commit);
  for (; !commit.nameless.empty() && !commit.full(); commit.nameless.pop_front()) {
    const ObjectId id = commit.nameless.front();
    commit.add(UnnameRecord{kRootId, fmt::format(".kvcachefs-nameless-{}", id.value), id}, kNamelessBytes);
    commit.dropped.push_back(id);
  }
  return !commit.batch.records.empty() || !commit.names.empty();
}

// What is known of the bodies in this commit goes with them: nobody else may tell it before the end.
void StoreImpl::take_rows(Commit& commit) {
  std::vector<ObjectId> ids;
  for (const CommitRequest& request : commit.requests)
    for (const SealedBody& sealed : request.bodies) ids.push_back(sealed.snapshot.object->id);
  commit.body_rows = accesses_->changed_rows_of(ids);
}

// The row of an object that the journal does not know would be lost.
void StoreImpl::add_rows(const Tree::View& tree, Commit& commit) {
  for (; !commit.successors.empty() && !commit.full(); commit.successors.pop_front()) {
    SuccessorsRecord& row = commit.successors.front();
    const ObjectPtr object = tree.live(row.id);
    if (object && !object->durable && !commit.put.contains(row.id)) {
      if (object->nlink > 0) commit.early_rows.push_back(std::move(row));
      continue;
    }
    const uint64_t bytes = bytes_of(row);
    commit.add(std::move(row), bytes);
  }
}

void StoreImpl::take_waiting(Tree::Write& tree, Commit& commit) {
  commit.taken = true;
  commit.accepted_bytes = record_space_->take();
  uint64_t bytes = 0;
  for (CommitRequest& request : commit.requests) {
    for (SealedBody& sealed : request.bodies) {
      const auto lock = sealed.snapshot.object->lock();
      bytes += bytes_of(sealed.snapshot.object->attributes) + bytes_of(sealed.body);
      tree.names().unpark(sealed.snapshot.object->id);
      commit.bodies.push_back(std::move(sealed));
    }
    request.bodies.clear();
    for (SuccessorsRecord& row : request.successors) {
      bytes += bytes_of(row);
      commit.successors.push_back(std::move(row));
    }
    request.successors.clear();
  }
  for (SuccessorsRecord& row : commit.body_rows) {  // after those of requests, which were drained before
    bytes += bytes_of(row);
    commit.successors.push_back(std::move(row));
  }
  commit.body_rows.clear();
  {
    for (ObjectPtr& object : dirty_.take_attributes()) {
      tree.names().unpark(object->id);  // what it waits for may not come any more: a change was undone
      {
        const auto lock = object->lock();
        bytes += bytes_of(object->attributes);
        if (!object->durable && !object->is_regular()) bytes += bytes_of(object->base);  // a record of its own
      }
      commit.changed.push_back(std::move(object));
    }
  }
  // Names are given before others are taken: were a batch to end in between, an object has two names, not none.
  std::vector<DirtyName> pending = tree.names().take_pending();
  std::stable_partition(pending.begin(), pending.end(), [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    return state != nullptr && state->child.valid();
  });
  for (DirtyName& name : pending) {
    bytes += bytes_of(name);
    commit.pending.push_back(std::move(name));
  }
  take_dispossessed(tree, commit);
  bytes += kNamelessBytes * commit.nameless.size();
  commit.split = bytes >= kBatchBytes;
  choose_shares(tree, commit);
}

// Another object takes the name of one whose new name waits: neither is to be lost, and nobody else is to wait.
// So that one has its new name with the body that is journaled, and before the other has the old one.
void StoreImpl::take_dispossessed(Tree::Write& tree, Commit& commit) {
  const auto was_journaled = [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    return state != nullptr && state->durable.valid();
  };
  if (std::none_of(commit.pending.begin(), commit.pending.end(), was_journaled)) return;  // nothing but new names: as usual
  for (const SealedBody& sealed : commit.bodies)  // as it will be when names are given
    if (sealed.snapshot.object->nlink > 0) commit.put.emplace(sealed.snapshot.object->id, sealed.snapshot.content_version);
  const auto dispossesses = [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    ObjectId named;
    return state != nullptr && state->durable.valid() &&
           change_of(tree, commit, name.parent, *state, &named) == NameChange::kGiven && named != state->durable &&
           would_be_nameless(tree, commit, state->durable);
  };
  for (bool again = true; std::exchange(again, false);) {  // one that is named so may take the name of the next
    for (size_t i = 0; i < commit.pending.size(); ++i) {
      if (!dispossesses(commit.pending[i])) continue;
      const ObjectId object = tree.names().state(commit.pending[i])->durable;
      commit.named_as_is.insert(object);
      tree.names().unpark(object);
      for (DirtyName& name : tree.names().take_pending()) commit.pending.push_back(std::move(name));
      again = true;
    }
  }
  commit.put.clear();
  if (commit.named_as_is.empty()) return;
  std::stable_partition(commit.pending.begin(), commit.pending.end(), [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    return state != nullptr && commit.named_as_is.contains(state->child);
  });
}

// The removal of a name takes its object along only if the journal knew the name. An object whose body was journaled before its
// name was, and that was unlinked in between, is named in a removal of its own. Some at a time: clients get in between.
void StoreImpl::take_nameless(Commit& commit) {
  constexpr size_t kStepsUnderLock = 256;
  Tree::Write tree = tree_->write();
  const auto look = [&](ObjectId id) {
    if (tree.names().mentions(id)) return false;  // its removal waits
    const ObjectPtr object = tree.live(id);
    if (object) {
      const auto lock = object->lock();
      if (object->sealing) return false;
    }
    auto record = index_->find_object_summary(id);
    if (record && *record && (*record)->nlink == 0) commit.nameless.push_back(id);
    if (record && !*record) tree.not_leaving(id);
    return true;
  };
  for (size_t left = tree.unlinked(); left > 0;) {
    const size_t steps = std::min(left, kStepsUnderLock);
    tree.look_at_unlinked(steps, look);
    left -= steps;
    if (left > 0) tree.breathe();
  }
}

// A place may change hands only within one batch: the one that has it must lose its last journaled name in the batch that
// gives it to the other. Bodies for which that is not so are dropped, and written after all.
void StoreImpl::choose_shares(Tree::Write& tree, Commit& commit) {
  auto shares = [](const SealedBody& sealed) { return sealed.shared_with.valid(); };
  if (std::none_of(commit.bodies.begin(), commit.bodies.end(), shares)) return;
  for (const SealedBody& sealed : commit.bodies)
    if (sealed.snapshot.object->nlink > 0) commit.put.emplace(sealed.snapshot.object->id, sealed.snapshot.content_version);
  for (bool again = true; again;) {  // a body that is dropped keeps its name from being given
    again = false;
    std::unordered_map<ObjectId, uint32_t> losing;
    for (const DirtyName& name : commit.pending) {
      const NameState* state = tree.names().state(name);
      if (state == nullptr || !state->durable.valid()) continue;
      ObjectId named;
      const NameChange change = change_of(tree, commit, name.parent, *state, &named);
      if (change == NameChange::kTaken || (change == NameChange::kGiven && named != state->durable)) ++losing[state->durable];
    }
    std::unordered_set<ObjectId> shared;
    for (SealedBody& sealed : commit.bodies) {
      if (!shares(sealed)) continue;
      auto other = index_->find_object(sealed.shared_with);
      const ObjectPtr alive = tree.live(sealed.shared_with);
      const bool fits = !commit.split && sealed.snapshot.object->nlink > 0 && other && *other && (*other)->nlink > 0 &&
                        (*other)->body.place == sealed.body.place && (!alive || alive->nlink == 0) &&
                        losing[sealed.shared_with] == (*other)->nlink && shared.insert(sealed.shared_with).second;
      if (fits) continue;
      again = true;
      commit.put.erase(sealed.snapshot.object->id);
      drop_body(tree, sealed);
    }
    std::erase_if(commit.bodies, [](const SealedBody& sealed) { return sealed.snapshot.object == nullptr; });
  }
  commit.put.clear();
}

// The body does not go into the journal: its object is gone, or what it shares is.
void StoreImpl::drop_body(Tree::Write& tree, SealedBody& sealed) {
  const bool written = !sealed.shared_with.valid() && !sealed.body.quarantined && !lies_in_spill_file(sealed);
  ObjectPtr object = std::move(sealed.snapshot.object);
  sealed.snapshot = {};
  {
    const auto lock = object->lock();
    object->replaced_checked = true;
    // What was written counts as dead from here on, and is not written again.
    if (object->nlink == 0) space_.release_leaving(object->id, std::exchange(object->sealing_reserved_bytes, 0));
  }
  if (written) dead_.add({}, sealed.body.place);
  abandon_seal(object);
  tree.forget_if_idle(object);
}

void StoreImpl::add_bodies(Tree::Write& tree, Commit& commit) {
  for (; !commit.bodies.empty() && !commit.full(); commit.bodies.pop_front()) {
    SealedBody& sealed = commit.bodies.front();
    const ObjectPtr object = sealed.snapshot.object;
    if (object->nlink == 0) {
      drop_body(tree, sealed);
      continue;
    }
    const auto lock = object->lock();
    PutRecord record;
    record.object.id = object->id;
    record.object.attributes = object->attributes;
    record.object.body = sealed.body;
    commit.add(std::move(record), bytes_of(object->attributes) + bytes_of(sealed.body));
    commit.attributes.emplace_back(object, object->attributes_version);
    commit.put.insert_or_assign(object->id, sealed.snapshot.content_version);
    commit.sealed.push_back(std::move(sealed));
  }
}

void StoreImpl::add_attributes(const Tree::View&, Commit& commit) {
  for (; !commit.changed.empty() && !commit.full(); commit.changed.pop_front()) {
    const ObjectPtr object = std::move(commit.changed.front());
    const auto lock = object->lock();
    if (object->nlink == 0) {
      object->attributes_durable = object->attributes_version;
      continue;
    }
    // What its body brought along; a later change is listed again when that is settled.
    if (commit.put.contains(object->id)) continue;
    if (object->durable) {
      commit.add(AttributesRecord{object->id, object->attributes}, bytes_of(object->attributes));
    } else if (!object->is_regular()) {
      PutRecord record;
      record.object.id = object->id;
      record.object.attributes = object->attributes;
      record.object.body = object->base;
      commit.add(std::move(record), bytes_of(object->attributes) + bytes_of(object->base));
      commit.put.emplace(object->id, 0);
    } else {
      // Comes with its body. Marked clean so that a later change lists it again.
      object->attributes_durable = object->attributes_version;
      continue;
    }
    commit.attributes.emplace_back(object, object->attributes_version);
  }
}

// To the journal, once this batch is in it: as it was when it was renamed or linked, or later. For a name that is given to an
// older body of its object shows bytes that nobody ever saw under it.
bool StoreImpl::is_known(const Tree::View& tree, const Commit& commit, ObjectId id) const {
  const ObjectPtr object = tree.live(id);
  if (!object || !object->is_regular()) return true;
  const auto put = commit.put.find(id);
  if (!object->durable && put == commit.put.end()) return false;
  const auto lock = object->lock();
  return object->raw || commit.named_as_is.contains(id) || (put != commit.put.end() && put->second >= object->named_version) ||
         (object->durable && object->journaled_version() >= object->named_version);
}

// It was renamed, and its new name waits for its body: taken from the old one it would be gone, with what was synced of it.
bool StoreImpl::would_be_nameless(const Tree::View& tree, const Commit& commit, ObjectId id) const {
  const ObjectPtr object = id.valid() ? tree.live(id) : nullptr;
  return object && object->is_regular() && object->durable && object->nlink > 0 && !is_known(tree, commit, id);
}

StoreImpl::NameChange StoreImpl::change_of(const Tree::View& tree, const Commit& commit, ObjectId parent, const NameState& state,
                                           ObjectId* named) const {
  *named = tree.version_to_keep(state);
  if (named->valid() && is_known(tree, commit, *named) && is_known(tree, commit, parent))
    return NameChange::kGiven;
  if (state.durable.valid() && (!state.child.valid() || state.erase_durable))
    return would_be_nameless(tree, commit, state.durable) ? NameChange::kWaitsForOther : NameChange::kTaken;
  return state.child.valid() ? NameChange::kWaits : NameChange::kNone;
}

void StoreImpl::add_names(Tree::Write& tree, Commit& commit) {
  if (!commit.bodies.empty() || !commit.changed.empty()) return;  // of a later batch
  for (; !commit.pending.empty() && !commit.full(); commit.pending.pop_front()) {
    DirtyName name = std::move(commit.pending.front());
    NameState* state = tree.names().state(name);
    if (state == nullptr) continue;
    ObjectId named;
    switch (change_of(tree, commit, name.parent, *state, &named)) {
      case NameChange::kGiven:
        commit.replaces |= state->durable.valid() && named != state->durable;
        if (named != state->durable) commit.add(NameRecord{name.parent, name.key.name, named}, bytes_of(name));
        commit.names.emplace_back(std::move(name), named);
        break;
      case NameChange::kTaken:
        commit.removes = true;
        commit.add(UnnameRecord{name.parent, name.key.name, state->durable, state->evicted && !state->child.valid()}, bytes_of(name));
        commit.names.emplace_back(std::move(name), ObjectId{});
        break;
      case NameChange::kWaits:  // its body is not sealed yet
        if (state->older_versions.empty()) tree.names().park(std::move(name), state->child);
        else tree.names().put_back_pending(std::move(name));  // or the seal of another version is enough
        break;
      case NameChange::kWaitsForOther:
        tree.names().put_back_pending(std::move(name));
        break;
      case NameChange::kNone:  // came and went between two commits
        commit.names.emplace_back(std::move(name), ObjectId{});
        break;
    }
  }
}

void StoreImpl::give_up(Commit& commit, const Status& why) {
  Tree::Write tree = tree_->write();
  if (!commit.taken) take_waiting(tree, commit);
  auto abandon = [&](SealedBody& sealed) {
    // Not what is in use already: of a body that was put in quarantine the place is the journaled one.
    if (!sealed.shared_with.valid() && !lies_in_spill_file(sealed) && !sealed.body.quarantined) dead_.add({}, sealed.body.place);
    abandon_seal(sealed.snapshot.object);
    tree.forget_if_idle(sealed.snapshot.object);  // it may have been unlinked meanwhile
  };
  for (SealedBody& sealed : commit.sealed) abandon(sealed);
  for (SealedBody& sealed : commit.bodies) abandon(sealed);
  for (auto& [name, durable] : commit.names) tree.names().put_back_pending(std::move(name));
  for (DirtyName& name : commit.pending) tree.names().put_back_pending(std::move(name));
  for (ObjectId id : commit.nameless) tree.note_unlinked(id);
  for (ObjectId id : commit.dropped) tree.note_unlinked(id);
  for (Record& record : commit.batch.records)
    if (auto* row = std::get_if<SuccessorsRecord>(&record)) commit.early_rows.push_back(std::move(*row));
  commit.early_rows.insert(commit.early_rows.end(), std::make_move_iterator(commit.successors.begin()),
                           std::make_move_iterator(commit.successors.end()));
  for (auto& [object, version] : commit.attributes) dirty_.add_attributes(object);
  for (ObjectPtr& object : commit.changed) dirty_.add_attributes(std::move(object));
  log::error("{} records could not be journaled and wait in memory: {}", commit.batch.records.size(), why.error().message);
}

// --- settling ---

void StoreImpl::settle_attributes(const ObjectPtr& object, uint64_t version) {
  const auto lock = object->lock();
  object->attributes_durable = version;
  if (object->attributes_version == version) return;
  dirty_.add_attributes(object);
  dirty_.wake();
}

// The object is locked. `unjournaled`: the raw file that no record named when the seal ended. Unless it is what was sealed, the
// body became raw meanwhile, and that is journaled next; or it is none any more.
void StoreImpl::settle_raw(Object& object, const Place& unjournaled) {
  if (!object.raw_unjournaled) return;
  if (unjournaled != object.base.place && object.raw) {
    object.base.place = unjournaled;
    object.base.checksums.clear();
    object.base.inline_bytes.clear();
    return;
  }
  if (unjournaled != object.base.place) discards_->remove_later(unjournaled.extent, PlaceKind::kRaw);
  object.raw_unjournaled = false;
}

void StoreImpl::settle_body(Tree::Write& tree, SealedBody& sealed) {
  const ObjectPtr object = sealed.snapshot.object;
  const Place sealed_place = sealed.body.place;  // not that of a raw file which the body has become meanwhile
  bool clean_units = false;
  {
    const auto lock = object->lock();
    const Place unjournaled = object->raw_unjournaled ? object->base.place : Place{};
    object->base = std::move(sealed.body);
    object->base_valid_bytes = object->raw ? 0 : std::min(sealed.snapshot.size_bytes, object->shrunk_to_bytes);
    object->sealed_version = sealed.snapshot.content_version;
    clean_units = object->settle_units(sealed.snapshot);
    if (sealed.snapshot.spill) {
      // Emptied after it was spilled: nothing names the file.
      if (object->base.place.extent != object->spill_extent)
        discards_->remove_later(object->spill_extent, PlaceKind::kSolo, std::exchange(object->sealing_reserved_bytes, 0));
      object->spill.reset();
      object->spill_extent = {};
    }
    settle_raw(*object, unjournaled);
    note_unmarked(*object);
    if (evictor_) evictor_->sized(object->id, sealed.snapshot.size_bytes);
    if (!object->content_dirty()) {
      space_.release(std::exchange(object->reserved_bytes, 0));
      keep_room(*object);
      object->replaced_checked = false;
    }
    if (!object->base.quarantined) tree.end_quarantine(object->id);
    end_seal(object);
  }
  object->replaced = {};
  tree.keep_shared_place(sealed.shared_with, sealed_place);
  if (clean_units) cache_->note_clean(object);
}

// An older version of a name lost its record to a newer one, but may be renamed yet: it lives in RAM only
// from now on. If it was renamed since the batch was made, its body is written anew.
void StoreImpl::lost_record(Tree::Write&, const ObjectPtr& object) {
  object->durable = false;
  const auto lock = object->lock();
  if (!object->is_regular()) return mark_attributes_dirty(object);
  if (object->published && !object->content_dirty() && !object->base.quarantined) content_changed(object);
}

void StoreImpl::settle_name(Tree::Write& tree, const DirtyName& name, ObjectId durable, std::vector<ObjectPtr>& touched) {
  auto touch = [&](ObjectId id) {
    if (ObjectPtr object = tree.live(id)) touched.push_back(std::move(object));
  };
  NameState* state = tree.names().state(name);
  if (state == nullptr) return;
  const ObjectId before = state->durable;
  if (!durable.valid()) state->erase_durable = false;
  if (state->child.valid() && state->child != durable) {
    tree.names().put_back_pending(name);
    dirty_.wake();
  }
  tree.names().settle(name, durable);
  touch(durable);
  touch(name.parent);
  if (before == durable || !before.valid()) return;
  auto record = index_->find_object_summary(before);
  if (record && *record) return touch(before);  // another name of it waits
  if (ObjectPtr object = tree.live(before)) {
    if (object->nlink > 0) lost_record(tree, object);
    touched.push_back(std::move(object));
  }
  tree.note_gone(before);  // also of one that was unlinked before its body was journaled
}

void StoreImpl::count_committed(Commit& commit, std::span<const FreedPlace> freed) {
  uint64_t consumed_bytes = 0, inline_bytes = 0;
  for (SealedBody& sealed : commit.sealed) {
    Object& object = *sealed.snapshot.object;
    inline_bytes += sealed.body.inline_bytes.size();
    const auto lock = object.lock();
    const bool in_vain = sealed.snapshot.spill && sealed.body.place.extent != object.spill_extent;  // see settle_body()
    if (!in_vain) consumed_bytes += std::exchange(object.sealing_reserved_bytes, 0);
  }
  record_space_->appended(commit.batch_bytes + inline_bytes, commit.batch.records.size());
  if (records_want_upkeep()) keeper_wakeup_.wake();
  dead_.journaled(freed, index_->totals().live_bytes, consumed_bytes);
  if (!freed.empty() || inline_bytes > 0) space_.hope();  // the index may have had the pages
}

// Behind the journal, so it must not fail: a damaged index is built anew first, or not committed any more.
Result<std::vector<FreedPlace>> StoreImpl::apply_to_index(const Batch& batch, JournalPosition after) {
  if (index_->damaged()) static_cast<void>(index_rebuild_->repair(*index_));
  auto freed = index_->apply(batch, after);
  if (!freed && index_->damaged() && index_rebuild_->repair(*index_)) freed = index_->apply(batch, after);
  if (!freed) index_->give_up_commits();
  return freed;
}

Status StoreImpl::apply_committed(Commit& commit, JournalPosition after) {
  // Without the lock of the names: until they are settled below, names and objects of the batch are answered from RAM.
  auto freed = commit.batch.records.empty() ? Result<std::vector<FreedPlace>>(std::in_place) : apply_to_index(commit.batch, after);
  count_committed(commit, freed ? std::span<const FreedPlace>(*freed) : std::span<const FreedPlace>());
  std::vector<Snapshot> done_with;  // their blocks are given back after the lock
  Tree::Write tree = tree_->write();
  // The journal has it: the RAM view goes on also when the index could not take it (it is rebuilt then). Step by step, so
  // that clients get in between: what is not settled yet is answered from RAM as before.
  std::vector<ObjectPtr> touched;
  size_t steps = 0;
  auto breathe = [&] {
    constexpr size_t kStepsUnderLock = 256;
    if (++steps % kStepsUnderLock != 0) return;
    tree.breathe();
  };
  for (SealedBody& sealed : commit.sealed) {
    touched.push_back(sealed.snapshot.object);
    touched.back()->durable = true;
    settle_body(tree, sealed);
    done_with.push_back(std::move(sealed.snapshot));
    breathe();
  }
  commit.sealed.clear();
  for (auto& [object, version] : commit.attributes) {
    object->durable = true;
    settle_attributes(object, version);
    touched.push_back(object);
    breathe();
  }
  for (auto& [name, durable] : commit.names) {
    settle_name(tree, name, durable, touched);
    breathe();
  }
  for (ObjectId id : commit.dropped) tree.note_gone(id);
  for (const ObjectPtr& object : touched) {
    tree.forget_if_idle(object);
    breathe();
  }
  if (freed) return {};
  counters_.errors_index.fetch_add(1, std::memory_order_relaxed);
  return std::unexpected(std::move(freed).error());
}

}  // namespace kvcachefs
