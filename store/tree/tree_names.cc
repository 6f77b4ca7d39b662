// Names and links: what clients see, and the changes of it. Everything is in RAM and in the mapped index.
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/limits.h"
#include "store/base/units.h"
#include "store/chain/sidecar.h"
#include "store/tree/tree.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

// --- what clients see ---

Result<std::optional<Namespace::Found>> Tree::View::find_name(ObjectId parent, std::string_view name) const {
  KVC_ASSIGN(auto found, names().find(parent, name));
  if (found && is_quarantined(found->child)) return std::nullopt;
  return found;
}

bool Tree::View::is_quarantined(ObjectId id) const {
  return tree_->has_quarantined() && (tree_->quarantined_.contains(id) || view().is_quarantined_there(id));
}

Status Tree::View::check_new_name(ObjectId parent, std::string_view name) const {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  KVC_ASSIGN(auto found, find_name(parent, name));
  if (found) return fail(Code::kExists, entry_text(parent, name));
  return {};
}

Result<std::vector<DirectoryItem>> Tree::View::list(ObjectId directory, uint64_t after, size_t limit) const {
  while (true) {
    KVC_ASSIGN(auto entries, names().list(directory, after, limit));
    std::vector<DirectoryItem> items;
    items.reserve(entries.size());
    for (auto& entry : entries)
      if (!is_quarantined(entry.child))
        items.push_back({std::move(entry.name), entry.child, entry.type_bits, entry.cookie});
    if (!items.empty() || entries.empty()) return items;  // an empty answer would mean the end of the listing
    after = entries.back().cookie;
  }
}

std::optional<Tree::View::ProbedBody> Tree::View::body_probed_by(ObjectId parent, std::string_view name, bool there) const {
  ProbedBody body{.name = body_of_sidecar(name), .id = {}, .size_bytes = 0};
  if (body.name.empty()) return std::nullopt;
  const auto found = find_name(parent, body.name);
  // One without the other: it is being written (the writer of a sidecar looks its name up, too), or it is no sidecar at all.
  if (!found || found->has_value() != there) return std::nullopt;
  if (!there) return body;
  const auto about = stat((*found)->child);
  if ((*found)->type_bits != S_IFREG || !about) return std::nullopt;
  body.id = (*found)->child;
  body.size_bytes = about->size_bytes;
  return body;
}

// --- links ---

void Tree::Write::touch_directory(ObjectId directory) {
  if (tree().adopted_.contains(directory)) tree().adopted_lost_names_ = true;
  auto object = get(directory);
  if (!object) return;
  const Parts& parts = tree().parts_;
  const auto lock = (*object)->lock();
  (*object)->attributes.mtime_ns = (*object)->attributes.ctime_ns = parts.clock.realtime_ns();
  mark_attributes_dirty(*object, parts.records, parts.dirty);
}

void Tree::Write::change_links(const ObjectPtr& object, int by, bool evicts) {
  const Parts& parts = tree().parts_;
  const auto lock = object->lock();
  if (object->id.is_foreign() && object->nlink == 0 && by < 0) return;  // its node removed it meanwhile, or the link was counted
  object->nlink = static_cast<uint32_t>(static_cast<int64_t>(object->nlink) + by);
  if (object->id.is_foreign()) return;  // its node counts the links, and gives the space back
  object->attributes.ctime_ns = parts.clock.realtime_ns();
  if (object->nlink > 0) return mark_attributes_dirty(object, parts.records, parts.dirty);
  tree().unlinked_.add(object->id);
  if (object->awaiting_body_bytes > 0) parts.records.body_came(std::exchange(object->awaiting_body_bytes, 0));
  if (!object->durable) {
    if (object->sealing) tree().leaving_.insert(object->id);  // the index may get it before the name is journaled as gone
    const uint64_t reserved = object->reserved_bytes + object->sealing_reserved_bytes;
    if (reserved > 0) parts.space.add_leaving(object->id, reserved);
    return;
  }
  const PlaceKind kind = object->base.place.kind;
  const bool has_place = kind == PlaceKind::kPacked || kind == PlaceKind::kSolo;
  const uint64_t bytes = has_place ? align_up(object->base.place.length, kBlockBytes) : 0;
  tree().leaving_.insert(object->id);
  parts.space.add_leaving(object->id, bytes);
  parts.space.hope();  // also without a body: its record is room once it is in no checkpoint any more
  if (!evicts && (kind == PlaceKind::kNone || !object->attributes.xattrs.empty())) parts.records.note_shrunk();
}

Result<ObjectPtr> Tree::Write::directory_for_entry(ObjectId id) {
  KVC_ASSIGN(ObjectPtr directory, get(id));
  if (!directory->is_directory()) return fail(Code::kNotDirectory, fmt::format("object {} is not a directory", id.value));
  if (directory->nlink == 0) return fail(Code::kNotFound, fmt::format("directory {} was removed", id.value));
  return directory;
}

void Tree::Write::take_from_quarantined(ObjectId id) {
  if (!id.valid()) return;
  auto object = get(id);
  if (!object) return;
  change_links(*object, -1);
  forget_if_idle(*object);
}

Result<Namespace::Edit> Tree::Write::edit(ObjectId parent, std::string_view name) {
  KVC_ASSIGN(Namespace::Edit state, names().edit(parent, name));
  const ObjectId hidden = std::exchange(state->hidden, {});
  if (!hidden.valid()) return state;
  if (const auto object = get(hidden)) lose_name(*object, parent, name);
  return state;
}

// --- new names ---

Status Tree::Write::give_name(ObjectId parent, std::string_view name, const ObjectPtr& object) {
  journal_adopted(parent);
  KVC_ASSIGN(Namespace::Edit state, edit(parent, name));
  take_from_quarantined(state->child);
  if (state->child.is_foreign()) override_peers(state, parent, name);
  tree().parts_.records.accept(kNameRecordBytes + name.size());
  state->child = object->id;
  state->type_bits = object->type_bits;
  tree().adopted_.erase(parent);
  return {};
}

Status Tree::Write::make_entry(const ObjectPtr& directory, std::string_view name, const ObjectPtr& object) {
  const Parts& parts = tree().parts_;
  const bool is_directory = object->is_directory();
  KVC_TRY(give_name(directory->id, name, object));
  {
    const auto lock = directory->lock();
    if (directory->attributes.mode & S_ISGID) {
      object->attributes.gid = directory->attributes.gid;
      if (is_directory) object->attributes.mode |= S_ISGID;
    }
  }
  object->temporary = object->is_regular() && tree().temporary_names_.created(directory->id, name);
  {
    const auto lock = object->lock();
    object->nlink = is_directory ? 2 : 1;
    mark_attributes_dirty(object, parts.records, parts.dirty);
  }
  add(object);
  if (is_directory) {
    change_links(directory, +1);
    hold_directory(directory->id, name, object->id);
  }
  touch_directory(directory->id);
  return {};
}

// --- removal ---

Status Tree::Write::unlink(ObjectId parent, std::string_view name, uint32_t thread_id) {
  KVC_ASSIGN(auto found, names().find(parent, name));
  if (found && found->type_bits == S_IFDIR) return fail(Code::kIsDirectory, entry_text(parent, name));
  if (const auto lost = lost_version(parent, name, found, thread_id)) {  // what others have there stays
    const ObjectPtr& own = lost->object;
    if (!own) {  // its bytes were given up before
      tree().lost_.take(lost->id);
      return {};
    }
    KVC_ASSIGN(Namespace::Edit state, names().edit_own(parent, name));
    take_lost(*state, own);
    tree().parts_.records.accept(kNameRecordBytes + name.size());
    touch_directory(parent);
    change_links(own, -1);
    forget_if_idle(own);
    kill_point("name-removed");
    return {};
  }
  if (!found) return fail(Code::kNotFound, entry_text(parent, name));
  KVC_ASSIGN(ObjectPtr newest, get(found->child));
  const ForgetAfter forget(*this, newest);  // forgets a peer's object that has other names
  KVC_ASSIGN(Namespace::Edit state, edit(parent, name));
  std::vector<ObjectId> removed = state->older_versions;
  removed.push_back(newest->id);
  if (removed.size() > 1) {
    // One of several writers cleans up after itself, the thread or else its process: the others keep their versions.
    const uint32_t process = process_of(thread_id);
    const auto newest_of = [&](const auto& is_writer) {
      return std::find_if(removed.rbegin(), removed.rend(), [&](ObjectId id) {
        const ObjectPtr object = live(id);
        return object && is_writer(*object);
      });
    };
    auto own = newest_of([&](const Object& object) { return object.writer_thread == thread_id; });
    if (own == removed.rend()) own = newest_of([&](const Object& object) { return object.writer_process == process; });
    if (own != removed.rend()) removed = {*own};
  }
  std::vector<ObjectId> kept = state->older_versions;
  kept.push_back(state->child);
  std::erase_if(kept, [&](ObjectId id) { return std::count(removed.begin(), removed.end(), id) > 0; });
  state->child = kept.empty() ? ObjectId{} : kept.back();
  if (!kept.empty()) kept.pop_back();
  state->older_versions = std::move(kept);
  if (!state->child.valid() || std::count(removed.begin(), removed.end(), state->durable) > 0) state->erase_durable = true;
  if (!state->child.valid()) override_peers(state, parent, name);
  tree().parts_.records.accept(kNameRecordBytes + name.size());
  touch_directory(parent);
  for (ObjectId id : removed)
    if (ObjectPtr version = live(id)) {
      change_links(version, -1);
      if (version->nlink == 0) forget_if_idle(version);
    }
  kill_point("name-removed");
  return {};
}

// Names that peers have there are seen afterwards, or as before.
uint64_t Tree::Write::evict(const ObjectPtr& object, ObjectId parent, const std::string& name) {
  auto state = names().edit_own(parent, name);
  if (!state) return 0;
  uint64_t bytes = 0;
  {
    const auto lock = object->lock();
    const Place& place = object->base.place;
    bytes = std::max<uint64_t>(place.kind == PlaceKind::kInline ? object->size_bytes : align_up(place.length, kBlockBytes), 1);
  }
  (*state)->leave_to_peers();
  (*state)->evicted = true;
  tree().parts_.records.accept(kNameRecordBytes + name.size());
  change_links(object, -1, /*evicts=*/true);
  forget_if_idle(object);
  forget_removed(object->id);  // a later call by this id is answered that the name has to be looked up again
  tree().parts_.dirty.wake();
  kill_point("name-removed");
  return bytes;
}

Status Tree::Write::clear_directory(ObjectId directory) {
  constexpr size_t kPageNames = 64;
  std::vector<NameEntry> left;
  for (uint64_t after = 0;;) {
    KVC_ASSIGN(auto page, names().list(directory, after, kPageNames));
    if (page.empty()) break;
    for (NameEntry& entry : page) {
      if (!is_quarantined(entry.child))
        return fail(Code::kNotEmpty, fmt::format("directory {}: '{}'", directory.value, entry.name));
      after = entry.cookie;
      left.push_back(std::move(entry));
    }
  }
  for (const NameEntry& entry : left) {
    KVC_ASSIGN(Namespace::Edit state, edit(directory, entry.name));
    std::vector<ObjectId> versions = std::exchange(state->older_versions, {});
    versions.push_back(std::exchange(state->child, {}));
    state->erase_durable = true;
    override_peers(state, directory, entry.name);
    for (ObjectId id : versions) take_from_quarantined(id);
  }
  return {};
}

// Marked as leaving until journaled: the batch under way may just now bring it into the index.
void Tree::Write::drop_directory(const ObjectPtr& directory) {
  {
    const auto lock = directory->lock();
    directory->nlink = 0;
    note_removed(stat_of(*directory));
  }
  tree().classes_.drop(directory->id);
  tree().adopted_.erase(directory->id);
  tree().unjournaled_.erase(directory->id);
  tree().unlinked_.add(directory->id);
  forget_if_idle(directory);
  tree().leaving_.insert(directory->id);
  tree().parts_.space.hope();
  tree().parts_.records.note_shrunk();
}

Status Tree::Write::remove_directory(ObjectId parent, std::string_view name) {
  KVC_ASSIGN(auto found, names().find(parent, name));
  if (!found) return fail(Code::kNotFound, entry_text(parent, name));
  if (found->type_bits != S_IFDIR) return fail(Code::kNotDirectory, entry_text(parent, name));
  KVC_TRY(clear_directory(found->child));
  KVC_ASSIGN(ObjectPtr object, get(found->child));
  const ForgetAfter forget(*this, object);
  KVC_ASSIGN(ObjectPtr directory, get(parent));
  const ForgetAfter forget_parent(*this, directory);
  KVC_ASSIGN(Namespace::Edit state, edit(parent, name));
  state->child = {};
  state->erase_durable = true;
  override_peers(state, parent, name);
  drop_directory(object);
  change_links(directory, -1);
  touch_directory(parent);
  return {};
}

// --- quarantine ---

void Tree::Write::found_quarantined(ObjectId id) {
  tree().quarantined_.insert(id);
  tree().quarantined_count_.store(tree().quarantined_.size());
}

void Tree::Write::mark_quarantined(const ObjectPtr& object) {
  object->base.quarantined = true;
  found_quarantined(object->id);
}

void Tree::Write::end_quarantine(ObjectId id) {
  if (tree().quarantined_.erase(id) > 0) tree().quarantined_count_.store(tree().quarantined_.size());
}

}  // namespace kvcachefs
