// Objects in RAM: the table, made from the index and forgotten when idle; and what stat says of them.
#include <algorithm>

#include <fmt/format.h>

#include "store/object/in_place_mark.h"
#include "store/store_impl.h"

namespace kvcachefs {

// --- the table ---

ObjectPtr StoreImpl::live(ObjectId id) const {
  auto found = table_.find(id);
  return found == table_.end() ? nullptr : found->second;
}

ObjectPtr StoreImpl::find_live(ObjectId id) const {
  std::shared_lock lock(names_mutex_);
  return live(id);
}

Result<ObjectPtr> StoreImpl::get_locked(ObjectId id) {
  if (ObjectPtr object = live(id)) return object;
  KVC_ASSIGN(auto record, index_->find_object(id));
  // Without a name it is gone, though the journal does not say so yet. What has names that are not journaled yet stays in the
  // table until they are: here the index knows them all.
  if (!record || leaving_.contains(id)) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  auto object = std::make_shared<Object>(id, std::move(record->attributes));
  object->size_bytes = record->body.size_bytes;
  object->base_valid_bytes = record->body.place.kind == PlaceKind::kRaw ? 0 : record->body.size_bytes;
  object->base = std::move(record->body);
  object->nlink = record->nlink;
  object->durable = object->published = true;
  object->in_place = has_in_place_mark(object->attributes);
  table_.emplace(id, object);
  return object;
}

Result<ObjectPtr> StoreImpl::get(ObjectId id) {
  {
    std::shared_lock lock(names_mutex_);
    if (ObjectPtr object = live(id)) return object;
  }
  std::unique_lock lock(names_mutex_);
  return get_locked(id);
}

Result<ObjectPtr> StoreImpl::get_kept(ObjectId id, std::shared_lock<SharedMutex<LockRank::kNames>>& names) {
  names = std::shared_lock(names_mutex_);
  while (true) {
    if (ObjectPtr object = live(id)) return object;
    names.unlock();
    KVC_TRY(get(id));
    names.lock();  // it may have been forgotten as idle in between
  }
}

ObjectPtr StoreImpl::make_object(uint32_t mode, uint32_t rdev, const Caller& caller) {
  Attributes attributes;
  attributes.mode = mode;
  attributes.uid = caller.uid;
  attributes.gid = caller.gid;
  attributes.rdev = rdev;
  attributes.btime_ns = clock_.realtime_ns();
  attributes.atime_ns = attributes.mtime_ns = attributes.ctime_ns = attributes.btime_ns;
  return std::make_shared<Object>(next_id(), std::move(attributes));
}

// --- forgetting ---

// forget_if_idle() would leave it: looked at first by who closes a chunk after reading it, for he keeps nobody out.
bool StoreImpl::stays_in_ram(Object& object) const {
  std::shared_lock names(names_mutex_);
  const auto lock = object.lock();
  return object.nlink > 0 && object.published && object.any_in_ram();
}

// names_mutex_ held exclusively. Of an object that was forgotten before, the one in the table now is another's business.
void StoreImpl::forget_if_idle(const ObjectPtr& object) {
  {
    const auto lock = object->lock();
    if (object->forgotten || object->handles > 0 || object->sealing || object->lingering || object->kept_for_repeat > 0) return;
    const bool gone = object->nlink == 0;
    if (!object->loading.empty()) {
      object->goes_when_loaded = gone;
      return;
    }
    if (!gone) {
      if (!object->durable || object->content_dirty() || object->attributes_version != object->attributes_durable)
        return;
      if (object->write_error || names_->mentions(object->id)) return;  // the index may count its names otherwise
      if (keep_for_rename(object)) return;
      if (object->any_in_ram()) return;
    }
    if (gone) {
      note_removed(stat_of(*object));
      accesses_->deleted(object->id);
      object->units.clear();
      object->memory_file.reset();
      object->sealed_version = object->content_version;
      const uint64_t reserved = std::exchange(object->reserved_bytes, 0);
      if (object->spill)
        discards_->remove_later(object->spill_extent, PlaceKind::kSolo, reserved);
      else
        space_.release(reserved);
      if (!object->durable) {
        space_.remove_leaving(object->id);
        leaving_.erase(object->id);
      }
      if (object->holds_room()) space_.hope();  // its bytes on the volume were kept for whoever had it open
      object->spill.reset();
      if (std::exchange(object->raw_unjournaled, false)) discards_->remove_later(object->base.place.extent, PlaceKind::kRaw);
    }
    object->forgotten = true;
  }
  table_.erase(object->id);
}

// For a thread of the volume, which must not wait for the namespace.
void StoreImpl::forget_later(const ObjectPtr& object) {
  keeper_work_.add([this, object] { forget_when_idle(object); });
}

// names_mutex_ held exclusively. The kernel asks for attributes of what it found a moment ago, and repeats that once only.
void StoreImpl::note_removed(Stat stat) {
  constexpr size_t kMostRemoved = 16'384;
  const ObjectId id = stat.id;
  stat.nlink = 0;
  if (!removed_.emplace(id, std::move(stat)).second) return;
  removed_order_.push_back(id);
  if (removed_order_.size() <= kMostRemoved) return;
  removed_.erase(removed_order_.front());
  removed_order_.pop_front();
}

// --- stat ---

Stat StoreImpl::stat_of(const Object& object) {
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
  } else if (object.is_regular() && !object.raw) {  // of a raw file its backing file tells
    // Not sealed yet: what has bytes counts, holes do not.
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
    // ... and behind the end.
    const uint64_t end = align_up(object.size_bytes, kBlockBytes);
    if (object.allocated_to > end) stat.blocks_512 += (object.allocated_to - std::max(end, object.allocated_from)) / 512;
  }
  return stat;
}

Stat StoreImpl::stat_of(const ObjectRecord& record) {
  Object object(record.id, record.attributes);
  object.size_bytes = record.body.size_bytes;
  object.nlink = record.nlink;
  return stat_of(object);
}

Result<Stat> StoreImpl::stat_locked(ObjectId id) const {
  if (ObjectPtr object = live(id)) {
    const auto lock = object->lock();
    return stat_of(*object);
  }
  if (auto removed = removed_.find(id); removed != removed_.end()) return removed->second;
  if (leaving_.contains(id)) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));  // the index may not know yet
  KVC_ASSIGN(auto record, index_->find_object_summary(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return stat_of(*record);
}

Result<Stat> StoreImpl::stat(ObjectId id) {
  ObjectPtr raw_object;
  FilePtr raw;
  {
    std::shared_lock lock(names_mutex_);
    raw_object = live(id);
    if (raw_object) {
      const auto object_lock = raw_object->lock();
      raw = raw_object->raw;
    }
    if (!raw) return stat_locked(id);
  }
  Result<FileInfo> info = raw->info();
  std::shared_lock lock(names_mutex_);
  const auto object_lock = raw_object->lock();
  Stat stat = stat_of(*raw_object);
  if (info) stat.blocks_512 = info->allocated_bytes / 512;
  return stat;
}

}  // namespace kvcachefs
