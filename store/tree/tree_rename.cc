// Rename: to a free name, over another, exchange, and of one of several versions of a temporary name.
#include "store/tree/rename.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/object/in_place_mark.h"
#include "store/tree/tree.h"

namespace kvcachefs {

namespace {

// After a rename of one of several versions: how long the kernel may take another version for it.
constexpr int64_t kRelookupNs = 1'000'000'000;

// The object is locked. It was written under another name, and is whole now: changes in place until then are how clients write
// chunks, and do not count.
void forget_in_place(const ObjectPtr& object, RecordSpace& records, DirtyQueue& dirty) {
  object->changes_in_place = 0;
  object->first_writes.reset();
  if (object->locked) return;
  object->changed_in_part = false;
  const bool was_patched = object->patched.exchange(false);
  if (!object->in_place.exchange(false) && !was_patched) return;
  std::erase_if(object->attributes.xattrs, [](const Xattr& xattr) { return xattr.name == kInPlaceMark; });
  mark_attributes_dirty(object, records, dirty);
}

}  // namespace

Status Tree::Write::resolve_rename(Rename& rename) {
  KVC_ASSIGN(auto from, names().find(rename.parent, rename.name));
  const auto lost = rename.exchanges() ? std::nullopt : lost_version(rename.parent, rename.name, from, rename.thread_id);
  if (lost && !lost->object)
    return fail(Code::kAbsentForNow, rename.old_text() + ": a file of another node took the name, and there was no room to keep what this program wrote under it; write it again");
  if (!from && !lost) return fail(Code::kNotFound, rename.old_text());
  KVC_ASSIGN(auto to, names().find(rename.new_parent, rename.new_name));
  rename.target_is_seen = to && !is_quarantined(to->child);
  if (rename.mode == RenameMode::kNoReplace && rename.target_is_seen) return fail(Code::kExists, rename.new_text());
  if (rename.exchanges() && !rename.target_is_seen) return fail(Code::kNotFound, rename.new_text());

  rename.was_lost = lost.has_value();
  ObjectId source_id = lost ? lost->id : from->child;
  const bool several = !lost && has_versions(rename.parent, rename.name);
  if (rename.exchanges() && (several || has_versions(rename.new_parent, rename.new_name)))
    return fail(Code::kBusy, fmt::format("{} and {} cannot be exchanged while several write one of them", rename.old_text(),
                                         rename.new_text()));
  if (several) {
    source_id = choose_version(*names().dirty(rename.parent, rename.name), rename.thread_id);
    rename.others_keep_name = true;
  }
  if (to && to->child == source_id && !rename.exchanges()) return {};
  KVC_ASSIGN(ObjectPtr source, get(source_id));
  rename.looked_at.push_back(source);
  KVC_ASSIGN(ObjectPtr into, directory_for_entry(rename.new_parent));
  rename.looked_at.push_back(std::move(into));
  if (to) {
    KVC_ASSIGN(rename.target, get(to->child));
    rename.looked_at.push_back(rename.target);
  }
  KVC_TRY(check_own(*source, rename.old_text()));
  if (rename.exchanges()) KVC_TRY(check_own(*rename.target, rename.new_text()));
  rename.source = std::move(source);
  return {};
}

// A client copies an object in which a peer has a part, instead of renaming it.
Status Tree::View::check_own(const Object& object, const std::string& what) const {
  if (object.id.is_foreign()) return fail(Code::kOtherNode, what + " is of another node");
  if (!object.is_directory() || view().is_alone()) return {};
  const auto shared = view().has_foreign_member(object.id);
  if (!shared && shared.error().code != Code::kNotFound) return std::unexpected(shared.error());
  if (shared && *shared) return fail(Code::kOtherNode, what + " is a directory of several nodes");
  return {};
}

Status Tree::Write::rename(Rename& rename) {
  if (rename.target_is_seen && rename.mode == RenameMode::kReplace) {
    const bool source_is_directory = rename.source->is_directory();
    if (source_is_directory && !rename.target->is_directory()) return fail(Code::kNotDirectory, rename.new_text());
    if (!source_is_directory && rename.target->is_directory()) return fail(Code::kIsDirectory, rename.new_text());
    if (source_is_directory) KVC_TRY(clear_directory(rename.target->id));
  }
  journal_adopted(rename.parent);
  journal_adopted(rename.new_parent);
  for (const ObjectPtr& moved : {rename.source, rename.target})
    if (moved) journal_adopted(moved->id);
  KVC_ASSIGN(Namespace::Edit old_state, rename.was_lost ? names().edit_own(rename.parent, rename.name) : edit(rename.parent, rename.name));
  if (rename.was_lost) tree().lost_.hold(rename.source->id);  // the edit may add another one
  auto edited = edit(rename.new_parent, rename.new_name);
  tree().lost_.hold({});
  KVC_ASSIGN(Namespace::Edit new_state, std::move(edited));  // nothing fails from here on
  tree().parts_.records.accept(2 * kNameRecordBytes + rename.name.size() + rename.new_name.size());
  const std::vector<ObjectId> dropped_versions = move_name(rename, old_state, new_state);
  note_moved(rename);
  settle_links(rename, dropped_versions);
  while (const auto older = tree().lost_.take_of(rename.parent, rename.name, rename.source->writer_thread)) end_lost(*older);
  if (rename.target) kill_point("name-replaced");
  return {};
}

// Returns the versions of the new name; they lose it.
std::vector<ObjectId> Tree::Write::move_name(const Rename& rename, Namespace::Edit& old_state, Namespace::Edit& new_state) {
  const ObjectId source_id = rename.source->id;
  if (rename.exchanges()) {
    old_state->child = rename.target->id;
    old_state->type_bits = rename.target->type_bits;
  } else if (rename.was_lost) {
    take_lost(*old_state, rename.source);
  } else if (rename.others_keep_name) {
    if (old_state->durable == source_id) old_state->erase_durable = true;
    if (old_state->child == source_id) {
      old_state->child = old_state->older_versions.back();
      old_state->older_versions.pop_back();
    } else {
      std::erase(old_state->older_versions, source_id);
    }
    // The kernel now believes that the new name means the version it knew under the old one.
    const int64_t until_ns = tree().parts_.clock.monotonic_ns() + kRelookupNs;
    if (ObjectPtr other = live(old_state->child)) other->relookup_until_ns.store(until_ns, std::memory_order_relaxed);
    for (ObjectId id : old_state->older_versions)
      if (ObjectPtr other = live(id)) other->relookup_until_ns.store(until_ns, std::memory_order_relaxed);
  } else {
    old_state->child = {};
    old_state->erase_durable = true;
  }
  std::vector<ObjectId> dropped = std::exchange(new_state->older_versions, {});  // an exchange finds none
  new_state->child = source_id;
  new_state->type_bits = rename.source->type_bits;
  for (const ObjectId kept : {rename.new_parent, source_id, rename.exchanges() ? rename.parent : ObjectId{}, rename.exchanges() ? rename.target->id : ObjectId{}})
    tree().adopted_.erase(kept);
  if (!rename.exchanges()) override_peers(new_state, rename.new_parent, rename.new_name);
  if (rename.source->is_directory()) hold_directory(rename.new_parent, rename.new_name, source_id);
  if (rename.exchanges() && rename.target->is_directory()) hold_directory(rename.parent, rename.name, rename.target->id);
  return dropped;
}

// Tells the objects, and the tracker of accesses, of their new names.
void Tree::Write::note_moved(Rename& rename) {
  const Parts& parts = tree().parts_;
  const ObjectPtr& source = rename.source;
  const ObjectPtr& target = rename.target;
  uint64_t size_bytes = 0;
  for (const ObjectPtr& moved : {source, rename.exchanges() ? target : ObjectPtr()}) {
    if (!moved || !moved->is_regular()) continue;
    const auto lock = moved->lock();
    moved->named_version = moved->content_version;
    if (moved == source) size_bytes = source->size_bytes;
    // One of several versions may lose its record in the batch under way.
    if (moved->contended || !moved->durable || moved->journaled_version() < moved->named_version) rename.unsealed.push_back(moved);
  }
  if (source->is_regular() && !source->published && !rename.exchanges()) {
    tree().temporary_names_.renamed(rename.parent, rename.name, rename.new_parent, rename.new_name);
    source->was_temporary |= source->temporary;
    source->temporary = false;
    const auto lock = source->lock();
    forget_in_place(source, parts.records, parts.dirty);
    // From here on it is a file of its own, whatever the other versions of its temporary name become.
    if (!source->locked) source->lock_identity = source->id;
  }
  source->published = true;
  source->moved_ns.store(parts.clock.monotonic_ns(), std::memory_order_relaxed);
  source->relookup_until_ns.store(0, std::memory_order_relaxed);
  if (source->is_directory())
    parts.accesses.directory_named(rename.thread_id, rename.new_parent, rename.new_name, source->id);
  else
    parts.accesses.published(rename.thread_id, rename.new_parent, rename.new_name, source->id, source->origin, size_bytes);
  if (rename.exchanges() && target->is_directory())
    parts.accesses.directory_named(rename.thread_id, rename.parent, rename.name, target->id);
  else if (rename.exchanges())
    parts.accesses.published(rename.thread_id, rename.parent, rename.name, target->id, target->origin, 0);
  change_links(source, 0);
  if (target) target->published = true;
}

// The replaced object loses its name, and the parent directories' link counts are adjusted.
void Tree::Write::settle_links(const Rename& rename, std::span<const ObjectId> dropped_versions) {
  const ObjectPtr& source = rename.source;
  const ObjectPtr& target = rename.target;
  const bool target_is_directory = target && target->is_directory();
  int old_parent_links = source->is_directory() ? -1 : 0;
  int new_parent_links = source->is_directory() ? +1 : 0;
  if (rename.exchanges()) {
    old_parent_links += target_is_directory ? +1 : 0;
    new_parent_links -= target_is_directory ? 1 : 0;
    change_links(target, 0);
  } else if (target_is_directory) {
    new_parent_links -= 1;
    drop_directory(target);
  } else if (target) {
    source->replaced = target->id;
    {
      const auto source_lock = source->lock();
      source->replaces = true;
    }
    change_links(target, -1);
    if (target->nlink > 0 || !linger(target)) forget_if_idle(target);
  }
  for (ObjectId id : dropped_versions)
    if (ObjectPtr version = live(id)) {
      change_links(version, -1);
      forget_if_idle(version);
    }
  auto adjust = [&](ObjectId directory, int by) {
    if (by == 0) return;
    if (auto object = get(directory)) change_links(*object, by);
  };
  if (rename.parent == rename.new_parent) {
    adjust(rename.parent, old_parent_links + new_parent_links);
  } else {
    adjust(rename.parent, old_parent_links);
    adjust(rename.new_parent, new_parent_links);
    touch_directory(rename.new_parent);
  }
  touch_directory(rename.parent);
}

}  // namespace kvcachefs
