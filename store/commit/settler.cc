#include "store/commit/settler.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace kvcachefs {

void Settler::count(const Commit& commit, std::span<const FreedPlace> freed) {
  uint64_t consumed_bytes = 0, inline_bytes = 0, awaited_bytes = 0;
  for (const SealedBody& sealed : commit.sealed) {
    Object& object = *sealed.snapshot.object;
    inline_bytes += sealed.body.inline_bytes.size();
    const auto lock = object.lock();
    const bool in_vain = sealed.snapshot.spill && sealed.body.place.extent != object.spill_extent;  // see settle_body()
    awaited_bytes += std::exchange(object.awaiting_body_bytes, 0);
    if (!in_vain) consumed_bytes += std::exchange(object.sealing_reserved_bytes, 0);
  }
  size_t rows = commit.batch.records.size();
  for (const Record& record : commit.batch.records)
    if (const auto* read = std::get_if<TouchRecord>(&record)) rows += read->atimes_ns.size() - 1;
  parts_.records.appended(commit.appended_bytes, commit.batch_bytes + inline_bytes, rows);
  if (awaited_bytes > 0) parts_.records.body_came(awaited_bytes);
  parts_.record_waiters.note_written();
  parts_.dead.journaled(freed, parts_.index.totals().live_bytes, consumed_bytes);
  if (!freed.empty() || inline_bytes > 0) parts_.space.hope();  // the index may have had the pages
}

void Settler::settle(Commit& commit, std::span<const FreedPlace> freed) {
  count(commit, freed);
  std::vector<Snapshot> done_with;  // their blocks are given back after the lock
  Tree::Write tree = parts_.tree.write();
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
    end_replacing(tree, object);
    tree.forget_if_idle(object);
    breathe();
  }
}

// What it replaced went from the journal with the names that this batch settled.
void Settler::end_replacing(const Tree::View& tree, const ObjectPtr& object) {
  if (!object->is_regular() || tree.names().mentions(object->id)) return;
  const auto lock = object->lock();
  object->replaces = false;
}

// Caller holds the object's lock.
void Settler::note_unmarked(const Object& object) {
  const Place& place = object.base.place;
  if ((place.kind != PlaceKind::kPacked && place.kind != PlaceKind::kSolo) || object.base.quarantined) return;
  parts_.unmarked.add(place.extent, object.id);
}

// Caller holds the object's lock. `unjournaled`: the raw file that no record named when the seal ended. If that is not the sealed one, the
// body became raw meanwhile, and is journaled so next; or it is no longer raw.
void Settler::settle_raw(Object& object, const Place& unjournaled) {
  if (!object.raw_unjournaled) return;
  if (unjournaled != object.base.place && object.raw) {
    object.base.place = unjournaled;
    object.base.checksums.clear();
    object.base.inline_bytes.clear();
    return;
  }
  if (unjournaled != object.base.place) parts_.discards.remove_later(unjournaled.extent, PlaceKind::kRaw);
  object.raw_unjournaled = false;
}

void Settler::settle_body(Tree::Write& tree, SealedBody& sealed) {
  const ObjectPtr object = sealed.snapshot.object;
  const Place sealed_place = sealed.body.place;  // before settle_raw(), which may set that of a raw file
  bool clean_units = false;
  {
    const auto lock = object->lock();
    const Place unjournaled = object->raw_unjournaled ? object->base.place : Place{};
    object->base = std::move(sealed.body);
    object->base_valid_bytes = object->raw ? 0 : std::min(sealed.snapshot.size_bytes, object->shrunk_to_bytes);
    object->sealed_version = sealed.snapshot.content_version;
    object->base_mtime_ns = sealed.snapshot.mtime_ns;
    object->base_ctime_ns = sealed.snapshot.ctime_ns;
    clean_units = object->settle_units(sealed.snapshot);
    if (sealed.snapshot.spill) {
      // It was emptied after it was spilled: nothing names the file.
      if (object->base.place.extent != object->spill_extent)
        parts_.discards.remove_later(object->spill_extent, PlaceKind::kSolo, std::exchange(object->sealing_reserved_bytes, 0));
      object->spill.reset();
      object->spill_extent = {};
    }
    settle_raw(*object, unjournaled);
    note_unmarked(*object);
    parts_.sealed(object->id, sealed.snapshot.size_bytes);
    if (!object->content_dirty()) {
      parts_.space.release(std::exchange(object->reserved_bytes, 0));
      parts_.changes.keep_room(*object);
      object->replaced_checked = false;
    }
    if (!object->base.quarantined) tree.end_quarantine(object->id);
    parts_.changes.end_seal(object);
  }
  object->replaced = {};
  tree.keep_shared_place(sealed.shared_with, sealed_place);
  if (clean_units) parts_.cache.note_clean(object);
}

void Settler::settle_attributes(const ObjectPtr& object, uint64_t version) {
  const auto lock = object->lock();
  object->attributes_durable = version;
  parts_.cache.note_xattrs(*object);
  if (object->attributes_version == version) return object->unjournaled_xattrs.journaled();
  parts_.dirty.add_attributes(object);
  parts_.dirty.wake();
}

// An older version of a name lost its record to a newer one, but may still be renamed: from now on it lives in RAM only. If it was renamed
// since the batch was made, its body is written again, as it is.
void Settler::lost_record(Tree::Write&, const ObjectPtr& object) {
  object->durable = false;
  const auto lock = object->lock();
  if (!object->is_regular()) return parts_.changes.mark_attributes_dirty(object);
  if (!object->published || object->content_dirty() || object->base.quarantined) return;
  if (!object->raw) static_cast<void>(parts_.changes.reserve_space(*object, object->size_bytes));  // its old place counts too, until it is given back
  parts_.changes.mark_content_dirty(object);
}

void Settler::settle_name(Tree::Write& tree, const DirtyName& name, ObjectId durable, std::vector<ObjectPtr>& touched) {
  auto touch = [&](ObjectId id) {
    if (ObjectPtr object = tree.live(id)) touched.push_back(std::move(object));
  };
  NameState* state = tree.names().state(name);
  if (state == nullptr) return;
  const ObjectId before = state->durable;
  if (!durable.valid()) state->erase_durable = false;
  if (durable.valid() && state->child == durable && state->type_bits == S_IFDIR) tree.directory_journaled(durable);
  if (state->child.valid() && !state->child.is_foreign() && state->child != durable) {
    tree.names().put_back_pending(name);
    parts_.dirty.wake();
  }
  tree.settle(name, durable);
  touch(durable);
  touch(name.parent);
  settle_former(tree, before == durable ? ObjectId{} : before, touched);
}

// The object that the name had according to the journal.
void Settler::settle_former(Tree::Write& tree, ObjectId before, std::vector<ObjectPtr>& touched) {
  if (!before.valid()) return;
  const auto record = parts_.index.find_object_summary(before);
  const bool is_named = record && *record;  // it has another pending name
  if (ObjectPtr object = tree.live(before)) {
    if (!is_named && object->nlink > 0) lost_record(tree, object);
    touched.push_back(std::move(object));
  }
  if (!is_named) tree.note_gone(before);  // also if it was unlinked before its body was journaled
}

}  // namespace kvcachefs
