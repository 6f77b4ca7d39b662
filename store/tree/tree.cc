// The table of objects in RAM: filled from the index, entries forgotten when idle; and stat().
#include "store/tree/tree.h"

#include <algorithm>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/object/in_place_mark.h"

namespace kvcachefs {

// --- calls that take the lock ---

std::optional<Tree::Write> Tree::try_write() {
  Write write(*this, std::try_to_lock);
  if (!write.lock_.owns_lock()) return std::nullopt;
  return write;
}

ObjectPtr Tree::find(ObjectId id) const { return read().live(id); }

Result<ObjectPtr> Tree::get(ObjectId id) {
  {
    const Read names = read();
    if (ObjectPtr object = names.live(id)) {
      refresh_adopted(names, *object);
      return object;
    }
  }
  return write().get(id);
}

Result<Tree::Kept> Tree::get_kept(ObjectId id) {
  while (true) {
    Read names = read();
    if (ObjectPtr object = names.live(id)) {
      refresh_adopted(names, *object);
      return Kept{std::move(names), std::move(object)};
    }
    names.unlock();
    KVC_TRY(get(id));  // it may be forgotten as idle before the next look
  }
}

std::optional<Stat> Tree::change_removed(ObjectId id, const std::function<void(Stat& stat)>& change) {
  const Write names = write();
  const auto found = removed_.find(id);
  if (found == removed_.end()) return std::nullopt;
  change(found->second);
  return found->second;
}

void Tree::forget_when_idle(const ObjectPtr& object) { write().forget_if_idle(object); }

bool Tree::stays_in_ram(Object& object) const {
  const Read names = read();
  const auto lock = object.lock();
  if (object.nlink == 0 || object.outdated.load().valid()) return false;
  const bool unsettled = !object.durable || object.content_dirty() || object.attributes_version != object.attributes_durable;
  return unsettled || (object.published && object.any_in_ram());
}

bool Tree::asks_for_process(ObjectId parent, std::string_view name) const {
  if (!has_versions() && !may_hide()) return false;
  const Read tree = read();
  if (tree.has_versions(parent, name)) return true;
  const auto found = tree.names().find(parent, name);
  return tree.hides_version(parent, name, found && *found ? (*found)->child : ObjectId{});
}

void Tree::clear() {
  shared_places_.clear();
  lingering_.clear();
  kept_for_rename_.clear();
  lost_.clear();
  table_.clear();
  outdated_.clear();
}

// --- the table ---

ObjectPtr Tree::View::live(ObjectId id) const {
  auto found = tree_->table_.find(id);
  return found == tree_->table_.end() ? nullptr : found->second;
}

Result<ObjectPtr> Tree::Write::get(ObjectId id) {
  if (ObjectPtr object = live(id)) return object;
  KVC_ASSIGN(auto found, record(id));
  // Objects with names not journaled yet stay in the table until they are, so here the index knows all names.
  if (!found) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  auto object = std::make_shared<Object>(id, std::move(found->attributes));
  object->size_bytes = found->body.size_bytes;
  object->base_valid_bytes = found->body.place.kind == PlaceKind::kRaw ? 0 : found->body.size_bytes;
  object->base = std::move(found->body);
  object->nlink = found->nlink;
  object->durable = object->published = true;
  const InPlace in_place = in_place_mark_of(object->attributes);
  object->in_place = in_place == InPlace::kWhole || in_place == InPlace::kPartly;
  object->patched = in_place == InPlace::kPatched;
  object->changed_in_part = in_place == InPlace::kPartly;
  object->relookup_until_ns = tree().recent_bodies_.until_ns(id);
  if (!id.is_foreign()) object->moved_ns = std::max(tree().recent_moves_.until_ns(id), INT64_MIN / 2) - kMovedNs;
  tree().table_.emplace(id, object);
  return object;
}

void Tree::Write::for_each(const std::function<void(const ObjectPtr&)>& visit) const {
  for (const auto& [id, object] : tree_->table_) visit(object);
}

namespace {
// The kernel may still open it by a name that it has lost. With little memory get() soon makes it anew, with the same times.
void note_forgotten(const Object& object, int64_t now_ns, RecentChanges& moves, RecentChanges& bodies) {
  const int64_t moved_ns = object.moved_ns, relookup_until_ns = object.relookup_until_ns;
  if (now_ns - moved_ns < kMovedNs && moves.until_ns(object.id) < moved_ns + kMovedNs) moves.note(object.id, moved_ns);
  if (!object.id.is_foreign() && relookup_until_ns > now_ns) bodies.note(object.id, relookup_until_ns - RecentChanges::kForNs);
}
}  // namespace

void Tree::Write::forget_if_idle(const ObjectPtr& object) {
  const Parts& parts = tree().parts_;
  {
    const auto lock = object->lock();
    if (object->forgotten || object->handles > 0 || object->sealing || object->lingering || object->leased || object->kept_for_repeat > 0) return;
    const bool outdated = object->outdated.load().valid();
    const bool gone = !outdated && object->nlink == 0;
    if (gone && tree().lost_.has(object->id)) return;
    if (!object->loading.empty()) {
      object->goes_when_loaded = gone || outdated;
      return;
    }
    if (!gone && !outdated) {
      if (!object->durable || object->content_dirty() || object->attributes_version != object->attributes_durable)
        return;
      if (object->write_error || names().mentions(object->id)) return;  // the index may count its names differently
      if (keep_for_rename(object)) return;
      if (object->any_in_ram()) return;
      note_forgotten(*object, parts.clock.monotonic_ns(), tree().recent_moves_, tree().recent_bodies_);
    }
    if (outdated) {
      object->units.clear();
      object->memory_file.reset();
    }
    if (gone) {
      note_removed(stat_of(*object));
      parts.accesses.deleted(object->id);
      object->units.clear();
      object->memory_file.reset();
      object->sealed_version = object->content_version;
      const uint64_t reserved = std::exchange(object->reserved_bytes, 0);
      if (object->spill)
        parts.discards.remove_later(object->spill_extent, PlaceKind::kSolo, reserved);
      else
        parts.space.release(reserved);
      if (!object->durable) {
        parts.space.remove_leaving(object->id);
        if (!object->is_directory()) tree().leaving_.erase(object->id);  // the batch under way may bring a directory into the index, see drop_directory()
      }
      if (object->holds_room()) parts.space.hope();  // its bytes on the volume were kept for clients that had it open
      object->spill.reset();
      if (std::exchange(object->raw_unjournaled, false)) parts.discards.remove_later(object->base.place.extent, PlaceKind::kRaw);
    }
    object->forgotten = true;
  }
  erase_from_table(*object);
}

void Tree::Write::note_gone(ObjectId id) {
  tree().leaving_.erase(id);
  tree().parts_.space.remove_leaving(id);
}

// The kernel asks for attributes of an object that it found a moment ago, and repeats that once only.
void Tree::Write::note_removed(Stat stat) {
  constexpr size_t kMostRemoved = 16'384;
  const ObjectId id = stat.id;
  stat.nlink = 0;
  if (!tree().removed_.emplace(id, std::move(stat)).second) return;
  tree().removed_order_.push_back(id);
  if (tree().removed_order_.size() <= kMostRemoved) return;
  tree().removed_.erase(tree().removed_order_.front());
  tree().removed_order_.pop_front();
}

// --- stat ---

Stat Tree::View::stat_of(const Object& object) const {
  Stat stat;
  stat.id = object.id;
  stat.mode = object.attributes.mode;
  stat.nlink = object.nlink;
  stat.uid = object.attributes.uid;
  stat.gid = object.attributes.gid;
  stat.rdev = object.attributes.rdev;
  stat.size_bytes = object.size_bytes;
  stat.atime_ns = object.attributes.atime_ns;
  stat.mtime_ns = object.attributes.mtime_ns;
  stat.ctime_ns = object.attributes.ctime_ns;
  stat.btime_ns = object.attributes.btime_ns;
  if (object.is_directory()) {
    stat.size_bytes = kBlockBytes;
    stat.blocks_512 = kBlockBytes / 512;
  } else if (object.is_regular() && object.content_version == object.sealed_version) {
    stat.blocks_512 = align_up(object.size_bytes, kBlockBytes) / 512;
  } else if (object.is_regular() && !object.raw) {  // for a raw file stat of the backing file gives them
    // Not sealed yet: units with bytes count, holes do not.
    for (size_t i = 0; i < div_ceil(object.size_bytes, kUnitBytes); ++i) {
      const Unit* unit = i < object.units.size() ? &object.units[i] : nullptr;
      const uint64_t begin = i * kUnitBytes, length = std::min(kUnitBytes, align_up(object.size_bytes, kBlockBytes) - begin);
      const uint64_t from = std::max(begin, object.allocated_from), to = std::min(begin + length, object.allocated_to);
      uint64_t bytes = to > from ? to - from : 0;  // promised by fallocate
      if (unit != nullptr && unit->block)
        bytes = std::max(bytes, std::min<uint64_t>(length, unit->block->capacity_bytes()));
      else if ((unit != nullptr && unit->spilled) || begin < object.base_valid_bytes)
        bytes = length;
      stat.blocks_512 += bytes / 512;
    }
    // ... and bytes allocated behind the end.
    const uint64_t end = align_up(object.size_bytes, kBlockBytes);
    if (object.allocated_to > end) stat.blocks_512 += (object.allocated_to - std::max(end, object.allocated_from)) / 512;
  }
  return stat;
}

// An object without a name is gone, even if the journal, and with it the index, does not say so yet: the row may be older than the last change.
Result<std::optional<ObjectRecord>> Tree::View::record(ObjectId id) const {
  if (tree_->leaving_.contains(id)) return std::nullopt;
  return id.is_foreign() ? view().find_object(id) : tree_->parts_.index.find_object(id);
}

Result<std::optional<ObjectRecord>> Tree::View::record_summary(ObjectId id) const {
  if (tree_->leaving_.contains(id)) return std::nullopt;
  return id.is_foreign() ? view().find_object_summary(id) : tree_->parts_.index.find_object_summary(id);
}

Result<Stat> Tree::View::stat(ObjectId id) const {
  if (ObjectPtr object = live(id)) {
    tree_->refresh_adopted(*this, *object);
    const auto lock = object->lock();
    return stat_of(*object);
  }
  if (auto removed = tree_->removed_.find(id); removed != tree_->removed_.end()) return removed->second;
  KVC_ASSIGN(auto record, record_summary(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  Object object(record->id, std::move(record->attributes));
  object.size_bytes = record->body.size_bytes;
  object.nlink = record->nlink;
  return stat_of(object);
}

// --- places on the volume ---

bool Tree::View::is_read_still(Object& object) {
  const auto lock = object.lock();
  return object.handles > 0 || object.lingering || object.leased || object.kept_for_repeat > 0 || !object.loading.empty();
}

bool Tree::View::still_needed(const FreedPlace& freed) const {
  for (const auto& [place, former] : tree_->shared_places_)
    if (place == freed.place && is_read_still(*former)) return true;
  ObjectPtr object = live(freed.object);
  if (!object) return false;
  {
    const auto lock = object->lock();
    if (object->base.place != freed.place) return false;  // it has a newer body
    if (object->nlink > 0 || object->sealing || tree_->lost_.has(object->id)) return true;  // a seal may read it, also of one that lost its name meanwhile
  }
  return is_read_still(*object);
}

void Tree::Write::keep_shared_place(ObjectId former, const Place& place) {
  if (!former.valid()) return;
  if (ObjectPtr object = live(former)) tree().shared_places_.emplace_back(place, std::move(object));
}

void Tree::Write::drop_unread_places() {
  std::erase_if(tree().shared_places_, [](const auto& shared) { return !View::is_read_still(*shared.second); });
}

}  // namespace kvcachefs
