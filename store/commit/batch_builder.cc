#include "store/commit/batch_builder.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/tree/journaled_version.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kNamelessBytes = 64;  // estimate for the removal of an object without a name

uint64_t bytes_of(const Attributes& attributes) {
  uint64_t bytes = 128;
  for (const Xattr& xattr : attributes.xattrs) bytes += 16 + xattr.name.size() + xattr.value.size();
  return bytes;
}
uint64_t bytes_of(const Body& body) { return 64 + 8 * body.checksums.size() + body.inline_bytes.size(); }
uint64_t bytes_of(const DirtyName& name) { return 32 + name.key.name.size(); }
uint64_t bytes_of(const SuccessorsRecord& row) { return 32 + 16 * row.successors.size(); }
uint64_t bytes_of(const TouchRecord& touches) { return 32 + 8 * touches.atimes_ns.size(); }
uint64_t bytes_of(const StatementRecord& said) {
  const auto* const damaged = std::get_if<DamagedRecord>(&said.what);
  return damaged != nullptr ? 32 + 8 * damaged->ids.size() : bytes_of(std::get<TouchRecord>(said.what));
}

// A journal names only objects of its own node. Returns false if nothing of the row is left.
bool leave_own(SuccessorsRecord& row) {
  if (row.id.is_foreign()) return false;
  if (row.predecessor.is_foreign()) row.predecessor = {};
  std::erase_if(row.successors, [](const auto& link) { return link.first.is_foreign(); });
  return true;
}

void set_times(Attributes& attributes, int64_t mtime_ns, int64_t ctime_ns) {
  attributes.mtime_ns = mtime_ns;
  attributes.ctime_ns = ctime_ns;
}

// Caller holds the object's lock. While its content is not in the journal, the record has the times of the content that is: peers must not see the time
// of a change before its bytes. The new times, also those that a client has set since, come with the body. Bytes of raw files are not in the journal.
AttributesRecord record_of_attributes(const Object& object) {
  AttributesRecord record{object.id, object.attributes};
  if (object.is_regular() && !object.raw && object.journaled_version() != object.content_version)
    set_times(record.attributes, object.base_mtime_ns, object.base_ctime_ns);
  return record;
}

// A spill file goes with its object.
bool lies_in_spill_file(const SealedBody& sealed) {
  return sealed.snapshot.spill && sealed.body.place.extent == sealed.snapshot.spill_extent;
}

}  // namespace

// --- what waits ---

// Takes the known successors of this commit's bodies with them: nothing else journals them before the end.
void BatchBuilder::take_rows(Commit& commit) {
  std::vector<ObjectId> ids;
  for (const CommitRequest& request : commit.requests)
    for (const SealedBody& sealed : request.bodies) ids.push_back(sealed.snapshot.object->id);
  commit.body_rows = parts_.accesses.changed_rows_of(ids);
}

void BatchBuilder::take_waiting(Tree::Write& tree, Commit& commit) {
  commit.taken = true;
  commit.accepted_bytes = parts_.records.take();
  commit.read_times = parts_.read_times.take();
  uint64_t bytes = bytes_of(commit.read_times);
  commit.answers.insert(commit.answers.begin(), std::move_iterator(answers_for_later_.begin()), std::move_iterator(answers_for_later_.end()));
  answers_for_later_.clear();
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
    std::ranges::move(request.answers, std::back_inserter(commit.answers));
    request.answers.clear();
    std::ranges::move(request.touches, std::back_inserter(commit.touches));
    request.touches.clear();
  }
  for (SuccessorsRecord& row : commit.body_rows) {  // after the rows of requests, which were drained earlier
    bytes += bytes_of(row);
    commit.successors.push_back(std::move(row));
  }
  commit.body_rows.clear();
  {
    std::vector<ObjectPtr> changed = parts_.dirty.take_attributes();
    for (size_t i = 0; i < changed.size(); ++i) {
      if (!tree.is_only_adopted(changed[i]->id)) continue;
      tree.journal_adopted(changed[i]->id);
      std::ranges::move(parts_.dirty.take_attributes(), std::back_inserter(changed));  // attributes of directories above it
    }
    for (ObjectPtr& object : changed) {
      tree.names().unpark(object->id);  // the body it waits for may never come: a change may have been undone
      {
        const auto lock = object->lock();
        bytes += bytes_of(object->attributes);
        if (!object->durable && !object->is_regular()) bytes += bytes_of(object->base);  // it gets a record of its own
      }
      commit.changed.push_back(std::move(object));
    }
  }
  // Names are given before others are taken: if a batch ended in between, an object would have two names, not none.
  std::vector<DirtyName> pending = tree.names().take_pending();
  std::stable_partition(pending.begin(), pending.end(), [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    return state != nullptr && state->child.valid();
  });
  std::ranges::move(pending, std::back_inserter(commit.pending));
  take_dispossessed(tree, commit);
  bytes += kNamelessBytes * commit.nameless.size();
  const auto of_names = bytes_of_names(tree, commit);
  commit.split = !of_names || bytes + *of_names >= Commit::kBatchBytes;
  choose_shares(tree, commit);
}

// The bytes of all names, with the statements about peers' files under them. nullopt if a directory, or what may be one, needs statements
// for all its content.
std::optional<uint64_t> BatchBuilder::bytes_of_names(Tree::Write& tree, const Commit& commit) const {
  const bool alone = tree.view().is_alone();
  uint64_t bytes = 0;
  for (const DirtyName& name : commit.pending) {
    const NameState* const state = tree.names().state(name);
    const size_t overridden = alone || state == nullptr ? 0 : state->overridden.size();
    if (overridden > 0 && (!state->child.valid() || state->type_bits == S_IFDIR)) return std::nullopt;
    bytes += bytes_of(name) * (1 + overridden);
  }
  return bytes;
}

// The removal of a name removes its object only if the journal knew the name. An object whose body was journaled before its name, and that
// was unlinked in between, gets a removal of its own. Works in pieces, so that clients get in between.
void BatchBuilder::take_nameless(Commit& commit) {
  constexpr size_t kStepsUnderLock = 256;
  Tree::Write tree = parts_.tree.write();
  const auto look = [&](ObjectId id) {
    if (tree.names().mentions(id)) return false;  // a pending removal of its name
    const ObjectPtr object = tree.live(id);
    if (object) {
      const auto lock = object->lock();
      if (object->sealing) return false;
    }
    auto record = parts_.index.find_object_summary(id);
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

// The body is not journaled: its object is gone, or the place that it shares is.
void BatchBuilder::drop_body(Tree::Write& tree, SealedBody& sealed) {
  const bool written = !sealed.shared_with.valid() && !sealed.body.quarantined && !lies_in_spill_file(sealed);
  ObjectPtr object = std::move(sealed.snapshot.object);
  sealed.snapshot = {};
  {
    const auto lock = object->lock();
    object->replaced_checked = true;
    // The written bytes count as dead from here on, and are not written again.
    if (object->nlink == 0) parts_.space.release_leaving(object->id, std::exchange(object->sealing_reserved_bytes, 0));
  }
  if (written) parts_.dead.add({}, sealed.body.place);
  parts_.changes.abandon_seal(object);
  tree.forget_if_idle(object);
}

// --- one batch ---

// The first batch takes the pending names and attributes, under the same lock.
bool BatchBuilder::build(Commit& commit) {
  Tree::Write tree = parts_.tree.write();
  if (!commit.taken) take_waiting(tree, commit);
  commit.batch = Batch{parts_.stamps.next(), {}};
  commit.batch_bytes = 0;
  commit.overridden.reset();
  commit.replaces = commit.removes = false;
  commit.sealed.clear();
  commit.attributes.clear();
  commit.names.clear();
  commit.dropped.clear();
  if (!commit.read_times.atimes_ns.empty()) {
    const uint64_t bytes = bytes_of(commit.read_times);
    commit.add(std::exchange(commit.read_times, {}), bytes);
  }
  add_bodies(tree, commit);
  add_attributes(tree, commit);
  add_names(tree, commit);
  add_rows(tree, commit);
  for (; !commit.nameless.empty() && !commit.full(); commit.nameless.pop_front()) {
    const ObjectId id = commit.nameless.front();
    commit.add(UnnameRecord{kRootId, fmt::format(".kvcachefs-nameless-{}", id.value), id}, kNamelessBytes);
    commit.dropped.push_back(id);
  }
  if (commit.bodies.empty() && commit.changed.empty() && commit.pending.empty() && !commit.full()) {
    for (Record& answer : commit.answers) commit.add(std::move(answer), kNamelessBytes);
    commit.answers.clear();
  }
  for (; !commit.touches.empty() && !commit.full(); commit.touches.pop_front()) {
    const uint64_t bytes = bytes_of(commit.touches.front());
    commit.add(std::move(commit.touches.front()), bytes);
  }
  return !commit.batch.records.empty() || !commit.names.empty();
}

void BatchBuilder::add_bodies(Tree::Write& tree, Commit& commit) {
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
    if (object->raw || object->content_version == sealed.snapshot.content_version) {  // the times may have been set since
      sealed.snapshot.mtime_ns = object->attributes.mtime_ns;
      sealed.snapshot.ctime_ns = object->attributes.ctime_ns;
    }
    set_times(record.object.attributes, sealed.snapshot.mtime_ns, sealed.snapshot.ctime_ns);
    record.object.body = sealed.body;
    commit.add(std::move(record), bytes_of(object->attributes) + bytes_of(sealed.body));
    commit.attributes.emplace_back(object, object->attributes_version);
    object->accepted_bytes = 0;
    commit.put.insert_or_assign(object->id, sealed.snapshot.content_version);
    commit.sealed.push_back(std::move(sealed));
  }
}

void BatchBuilder::add_attributes(const Tree::View&, Commit& commit) {
  for (; !commit.changed.empty() && !commit.full(); commit.changed.pop_front()) {
    const ObjectPtr object = std::move(commit.changed.front());
    const auto lock = object->lock();
    const uint64_t accepted_bytes = std::exchange(object->accepted_bytes, 0);
    if (object->nlink == 0) {
      object->attributes_durable = object->attributes_version;
      continue;
    }
    // Its body has brought the attributes along; settling that lists a later change again.
    if (commit.put.contains(object->id)) continue;
    if (object->durable) {
      commit.add(record_of_attributes(*object), bytes_of(object->attributes));
    } else if (!object->is_regular()) {
      PutRecord record;
      record.object.id = object->id;
      record.object.attributes = object->attributes;
      record.object.body = object->base;
      commit.add(std::move(record), bytes_of(object->attributes) + bytes_of(object->base));
      commit.put.emplace(object->id, 0);
    } else {
      // The attributes go with the body. Marked clean so that a later change lists them again.
      if (accepted_bytes > object->awaiting_body_bytes)
        parts_.records.await_body(accepted_bytes - std::exchange(object->awaiting_body_bytes, accepted_bytes));
      object->attributes_durable = object->attributes_version;
      continue;
    }
    commit.attributes.emplace_back(object, object->attributes_version);
  }
}

// True if, once this batch is in it, the journal knows the object as it was when it was renamed or linked, or later. A name given to an
// older body would show bytes that no client ever saw under it.
bool BatchBuilder::is_known(const Tree::View& tree, const Commit& commit, ObjectId id) const {
  const ObjectPtr object = tree.live(id);
  if (!object) return true;
  // An object made while an earlier batch of this commit was written goes into the next one; before add_attributes(), all of `changed`
  // still will.
  if (!object->is_regular()) return object->durable || !commit.changed.empty() || commit.put.contains(id);
  const auto put = commit.put.find(id);
  if (!object->durable && put == commit.put.end()) return false;
  const auto lock = object->lock();
  return object->raw || commit.named_as_is.contains(id) || (put != commit.put.end() && put->second >= object->named_version) ||
         (object->durable && object->journaled_version() >= object->named_version);
}

// True if the object was renamed and its new name waits for its body: if it lost the old name now, it would be lost with its synced bytes. Not if the old
// name was temporary: a client that synced its file in the middle wants no part of it under the new name, which is absent (or old) until the body comes.
bool BatchBuilder::would_be_nameless(const Tree::View& tree, const Commit& commit, ObjectId id) const {
  const ObjectPtr object = id.valid() ? tree.live(id) : nullptr;
  return object && object->is_regular() && object->durable && object->nlink > 0 && !object->was_temporary && !is_known(tree, commit, id);
}

BatchBuilder::NameChange BatchBuilder::change_of(const Tree::View& tree, const Commit& commit, ObjectId parent, const NameState& state,
                                                 ObjectId* named) const {
  ++looks_;
  *named = version_to_journal(tree, state);
  if (named->valid() && is_known(tree, commit, *named) && !tree.is_only_adopted(parent))
    return NameChange::kGiven;
  if (state.durable.valid() && (!state.child.valid() || state.erase_durable))
    return would_be_nameless(tree, commit, state.durable) ? NameChange::kWaitsForOther : NameChange::kTaken;
  return state.child.valid() && !state.child.is_foreign() ? NameChange::kWaits : NameChange::kNone;
}

// What a client removed or replaced disappears on all nodes that read this batch. Returns false if statements are missing: the name waits.
bool BatchBuilder::add_statements(const Tree::View& tree, Commit& commit, const DirtyName& name, const NameState& state) {
  constexpr size_t kMostAtOnce = 20'000;  // so that a batch stays one frame
  if (state.overridden.empty() || tree.view().is_alone()) return true;
  const PeersRemoval removal{.children = &state.overridden,
                             .is_taken =
                                 [&](ObjectId child, std::string_view of_name) {
                                   if (!commit.overridden) commit.overridden = tree.names().overridden();
                                   return commit.overridden->contains({child, std::string(of_name)});
                                 },
                             .most = kMostAtOnce,
                             .spoken_of = &commit.spoken_of};
  auto said = tree.view().statements_of_removal(name.parent, name.key.name, removal);
  if (!said) {
    if (said.error().code == Code::kNotFound) return true;  // it is gone with its directory
    log::error("what peers have of {} cannot be removed yet: {}", entry_text(name.parent, name.key.name), said.error().message);
    return false;
  }
  const bool all = said->size() < kMostAtOnce;
  for (Record& record : *said) commit.add(std::move(record), bytes_of(name));
  return all;
}

void BatchBuilder::add_names(Tree::Write& tree, Commit& commit) {
  if (!commit.bodies.empty() || !commit.changed.empty()) return;  // names go with a later batch
  for (; !commit.pending.empty() && !commit.full(); commit.pending.pop_front()) {
    DirtyName name = std::move(commit.pending.front());
    NameState* state = tree.names().state(name);
    if (state == nullptr) continue;
    if (state->child.valid() && !state->child.is_foreign() && !tree.is_only_adopted(state->child) && tree.is_only_adopted(name.parent)) {
      tree.journal_adopted(name.parent);  // usually done by the call that gives the name; if not, the index would skip the name
      tree.names().put_back_pending(std::move(name));
      continue;
    }
    ObjectId named;
    const NameChange change = change_of(tree, commit, name.parent, *state, &named);
    const bool waits = change == NameChange::kWaits || change == NameChange::kWaitsForOther;
    if (!waits && !add_statements(tree, commit, name, *state)) {
      tree.names().put_back_pending(std::move(name));
      parts_.dirty.wake();
      continue;
    }
    switch (change) {
      case NameChange::kGiven:
        commit.replaces |= state->durable.valid() && named != state->durable;
        if (named != state->durable) commit.add(NameRecord{name.parent, name.key.name, named}, bytes_of(name));
        state->on_its_way = named;
        commit.names.emplace_back(std::move(name), named);
        break;
      case NameChange::kTaken:
        commit.removes = true;
        commit.add(UnnameRecord{name.parent, name.key.name, state->durable, state->evicted && (!state->child.valid() || state->child.is_foreign())}, bytes_of(name));
        commit.names.emplace_back(std::move(name), ObjectId{});
        break;
      case NameChange::kWaits:  // its body is not sealed yet
        journal_former_version(tree, *state, parts_.changes);
        if (state->older_versions.empty()) tree.names().park(std::move(name), state->child);
        else tree.names().put_back_pending(std::move(name));  // the seal of another version may be enough
        break;
      case NameChange::kWaitsForOther:
        keep_answers(commit);  // no answer to a peer's statement before the name is gone
        tree.names().put_back_pending(std::move(name));
        break;
      case NameChange::kNone:  // came and went between two commits, or only peers have it
        commit.names.emplace_back(std::move(name), ObjectId{});
        break;
    }
  }
}

// Of several answers to the same peer, only the last counts.
void BatchBuilder::keep_answers(Commit& commit) {
  for (Record& answer : commit.answers) {
    if (const auto* const seen = std::get_if<SeenRecord>(&answer))
      std::erase_if(answers_for_later_, [seen](const Record& each) {
        const auto* const before = std::get_if<SeenRecord>(&each);
        return before != nullptr && before->node == seen->node;
      });
    answers_for_later_.push_back(std::move(answer));
  }
  commit.answers.clear();
}

// A row of an object that the journal does not know would be lost.
void BatchBuilder::add_rows(const Tree::View& tree, Commit& commit) {
  for (; !commit.successors.empty() && !commit.full(); commit.successors.pop_front()) {
    SuccessorsRecord& row = commit.successors.front();
    if (!leave_own(row)) continue;
    const ObjectPtr object = tree.live(row.id);
    if (object && !object->durable && !commit.put.contains(row.id)) {
      if (object->nlink > 0) commit.early_rows.push_back(std::move(row));
      continue;
    }
    const uint64_t bytes = bytes_of(row);
    commit.add(std::move(row), bytes);
  }
}

// --- the journal takes nothing ---

void BatchBuilder::give_up(Commit& commit) {
  Tree::Write tree = parts_.tree.write();
  if (!commit.taken) take_waiting(tree, commit);
  auto abandon = [&](SealedBody& sealed) {
    // Not a place that is in use already: the place of a quarantined body is the journaled one.
    if (!sealed.shared_with.valid() && !lies_in_spill_file(sealed) && !sealed.body.quarantined) parts_.dead.add({}, sealed.body.place);
    parts_.changes.abandon_seal(sealed.snapshot.object);
    tree.forget_if_idle(sealed.snapshot.object);  // it may have been unlinked meanwhile
  };
  for (SealedBody& sealed : commit.sealed) abandon(sealed);
  for (SealedBody& sealed : commit.bodies) abandon(sealed);
  for (auto& [name, durable] : commit.names) tree.names().put_back_pending(std::move(name));
  for (DirtyName& name : commit.pending) tree.names().put_back_pending(std::move(name));
  for (ObjectId id : commit.nameless) tree.note_unlinked(id);
  for (ObjectId id : commit.dropped) tree.note_unlinked(id);
  for (Record& record : commit.batch.records) {
    if (auto* row = std::get_if<SuccessorsRecord>(&record)) commit.early_rows.push_back(std::move(*row));
    if (const auto* read = std::get_if<TouchRecord>(&record)) parts_.read_times.put_back(*read);
  }
  parts_.read_times.put_back(commit.read_times);
  commit.early_rows.insert(commit.early_rows.end(), std::make_move_iterator(commit.successors.begin()),
                           std::make_move_iterator(commit.successors.end()));
  for (auto& [object, version] : commit.attributes) {
    parts_.dirty.add_attributes(object);
    const auto lock = object->lock();
    object->accepted_bytes = record_bytes(*object);  // counts in RecordSpace again
  }
  for (ObjectPtr& object : commit.changed) parts_.dirty.add_attributes(std::move(object));
  keep_answers(commit);
}

}  // namespace kvcachefs
