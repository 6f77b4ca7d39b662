// Names: lookup, create, link, unlink, rename, list. All in RAM and on the mapped index; durable answers wait for the
// committer (make_durable) after the change was made.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {

constexpr size_t kMaxNameBytes = 255;

std::string entry_text(ObjectId parent, std::string_view name) {
  return fmt::format("'{}' in directory {}", name, parent.value);
}

// Thread group (process) of a thread; the thread itself when it is gone. Reads /proc; only asked when a name has
// several versions.
uint32_t process_of(uint32_t thread_id) {
  FILE* file = std::fopen(fmt::format("/proc/{}/status", thread_id).c_str(), "re");
  if (file == nullptr) return thread_id;
  char line[256];
  unsigned process = thread_id;
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "Tgid: %u", &process) == 1) break;
  std::fclose(file);
  return process;
}

}  // namespace

// --- the object table ---

ObjectPtr StoreImpl::live(ObjectId id) const {
  auto found = table_.find(id);
  return found == table_.end() ? nullptr : found->second;
}

Result<ObjectPtr> StoreImpl::get_locked(ObjectId id) {
  if (ObjectPtr object = live(id)) return object;
  KVC_ASSIGN(auto record, index_->find_object(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  auto object = std::make_shared<Object>(id, std::move(record->attributes));
  object->size_bytes = record->body.size_bytes;
  object->base_valid_bytes = record->body.place.kind == PlaceKind::kRaw ? 0 : record->body.size_bytes;
  object->base = std::move(record->body);
  object->nlink = record->nlink;
  object->durable = object->published = true;
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

// A file that no record names. Any lock may be held: the keeper does it.
void StoreImpl::remove_later(ExtentId id, PlaceKind kind) {
  std::lock_guard lock(keeper_mutex_);
  keeper_work_.push_back([this, id, kind] {
    if (Status status = extents_->remove(id, kind); !status) log::warn("unused extent: {}", status.error().message);
  });
  keeper_kicked_ = true;
  keeper_ready_.notify_one();
}

void StoreImpl::forget_if_idle(const ObjectPtr& object) {
  {
    std::lock_guard lock(object->mutex);
    if (object->handles > 0 || object->sealing || !object->loading.empty()) return;
    const bool gone = object->nlink == 0;
    if (!gone) {
      if (object->links_changed && object->durable) {
        auto record = index_->find_object_summary(object->id);
        if (!record || !*record || (*record)->nlink != object->nlink) return;
      }
      if (!object->durable || object->content_dirty() || object->attributes_version != object->attributes_durable)
        return;
      if (std::any_of(object->units.begin(), object->units.end(), [](const Unit& unit) { return unit.block != nullptr; }))
        return;
    }
    if (gone) {
      prefetcher_->deleted(object->id);
      object->units.clear();
      object->sealed_version = object->content_version;
      space_.release(std::exchange(object->reserved_bytes, 0));
      if (object->spill) remove_later(object->spill_extent, PlaceKind::kSolo);
      object->spill.reset();
      if (object->raw && !object->durable) remove_later(object->base.place.extent, PlaceKind::kRaw);
    }
  }
  table_.erase(object->id);
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
  } else if (object.is_regular()) {
    // Not sealed yet: what has bytes counts, holes do not.
    for (size_t i = 0; i < div_ceil(object.size_bytes, kUnitBytes); ++i) {
      const Unit* unit = i < object.units.size() ? &object.units[i] : nullptr;
      const uint64_t length = std::min(kUnitBytes, align_up(object.size_bytes, kBlockBytes) - i * kUnitBytes);
      if (unit != nullptr && unit->block)
        stat.blocks_512 += std::min<uint64_t>(length, unit->block->capacity_bytes()) / 512;
      else if ((unit != nullptr && unit->spilled) || i * kUnitBytes < object.base_valid_bytes)
        stat.blocks_512 += length / 512;
    }
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
    std::lock_guard lock(object->mutex);
    return stat_of(*object);
  }
  KVC_ASSIGN(auto record, index_->find_object_summary(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return stat_of(*record);
}

Result<Stat> StoreImpl::stat(ObjectId id) {
  ObjectPtr raw_object;
  {
    std::shared_lock lock(names_mutex_);
    ObjectPtr object = live(id);
    if (!object || !object->raw) return stat_locked(id);
    raw_object = std::move(object);
  }
  Result<FileInfo> info = raw_object->raw->info();
  std::shared_lock lock(names_mutex_);
  std::lock_guard object_lock(raw_object->mutex);
  Stat stat = stat_of(*raw_object);
  if (info) stat.blocks_512 = info->allocated_bytes / 512;
  return stat;
}

// --- lookup ---

// For a lookup: what the caller itself is making, else the newest that reads whole.
ObjectId StoreImpl::choose_version_to_read(const NameState& state, uint32_t thread_id) {
  if (ObjectPtr newest = live(state.child); newest && process_of(newest->writer_thread) == process_of(thread_id)) return state.child;
  std::vector<ObjectId> versions = state.older_versions;
  versions.push_back(state.child);
  for (auto id = versions.rbegin(); id != versions.rend(); ++id) {
    ObjectPtr object = live(*id);
    if (!object) continue;
    std::lock_guard lock(object->mutex);
    if (object->finished()) return *id;
  }
  return state.child;
}

// For a rename: the newest finished version of the caller's process, else the newest finished, else the newest.
ObjectId StoreImpl::choose_version(const NameState& state, uint32_t thread_id) {
  const uint32_t process = process_of(thread_id);
  ObjectId finished_here, finished_anywhere, newest = state.child;
  auto consider = [&](ObjectId id) {  // newest first
    ObjectPtr object = live(id);
    if (!object) return;
    bool finished = false;
    {
      std::lock_guard lock(object->mutex);
      finished = object->finished();
    }
    if (!finished) return;
    if (!finished_anywhere.valid()) finished_anywhere = id;
    if (!finished_here.valid() && process_of(object->writer_thread) == process) finished_here = id;
  };
  consider(state.child);
  for (auto id = state.older_versions.rbegin(); id != state.older_versions.rend(); ++id) consider(*id);
  if (finished_here.valid()) return finished_here;
  return finished_anywhere.valid() ? finished_anywhere : newest;
}

// What clients see under a name: a quarantined object is absent (and its name may be taken by a new one).
Result<std::optional<Namespace::Found>> StoreImpl::find_name(ObjectId parent, std::string_view name) const {
  KVC_ASSIGN(auto found, names_->find(parent, name));
  if (found && quarantined_count_.load(std::memory_order_relaxed) > 0 && quarantined_.contains(found->child))
    return std::nullopt;
  return found;
}

// The kernel knows again what the name means.
static void looked_up(Object& object) {
  object.relookup.store(false, std::memory_order_relaxed);
  object.moved.store(false, std::memory_order_relaxed);
}

Result<Stat> StoreImpl::lookup(ObjectId parent, std::string_view name, const Caller& caller) {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  bool versions = false;
  {
    std::shared_lock lock(names_mutex_);
    const NameState* state = names_->dirty(parent, name);
    versions = (state != nullptr && !state->older_versions.empty()) || told_stale_.contains(caller.thread_id);
    if (!versions) {
      KVC_ASSIGN(auto found, find_name(parent, name));
      prefetcher_->probed(caller.thread_id, parent, name, found ? found->child : ObjectId{},
                          found && found->type_bits == S_IFDIR, clock_.monotonic_ns());
      if (!found) {
        counters_.probe_misses.fetch_add(1, std::memory_order_relaxed);
        return fail(Code::kNotFound, entry_text(parent, name));
      }
      counters_.probe_hits.fetch_add(1, std::memory_order_relaxed);
      if (ObjectPtr object = live(found->child)) looked_up(*object);
      return stat_locked(found->child);
    }
  }
  std::unique_lock lock(names_mutex_);
  KVC_ASSIGN(auto found, find_name(parent, name));
  if (!found) {
    counters_.probe_misses.fetch_add(1, std::memory_order_relaxed);
    return fail(Code::kNotFound, entry_text(parent, name));
  }
  const NameState* state = names_->dirty(parent, name);
  const bool several = state != nullptr && !state->older_versions.empty();
  ObjectId chosen = several ? choose_version_to_read(*state, caller.thread_id) : found->child;
  bool brief = several;
  if (auto told = told_stale_.find(caller.thread_id); told != told_stale_.end() && told->second) {
    // It wants to write the name anew while another is at it: it gets a version of its own.
    KVC_ASSIGN(ObjectPtr object, get_locked(chosen));
    if (still_written_by_other(*object, caller.thread_id)) {
      KVC_ASSIGN(ObjectPtr fresh, new_version(parent, name, object, caller));
      chosen = fresh->id;
      brief = true;
    }
  }
  counters_.probe_hits.fetch_add(1, std::memory_order_relaxed);
  if (ObjectPtr object = live(chosen)) looked_up(*object);
  KVC_ASSIGN(Stat stat, stat_locked(chosen));
  // A rename moves the kernel's entry, with its time-out, to the new name, where another version may be meant.
  stat.brief = brief;
  return stat;
}

// --- new entries ---

void StoreImpl::mark_attributes_dirty(const ObjectPtr& object) {
  const bool first = object->attributes_version == object->attributes_durable;
  ++object->attributes_version;
  if (!first) return;
  std::lock_guard lock(dirty_mutex_);
  dirty_attributes_.push_back(object);
}

void StoreImpl::touch_directory(ObjectId directory) {
  auto object = get_locked(directory);
  if (!object) return;
  std::lock_guard lock((*object)->mutex);
  (*object)->attributes.mtime_ns = (*object)->attributes.ctime_ns = clock_.realtime_ns();
  mark_attributes_dirty(*object);
}

void StoreImpl::change_links(const ObjectPtr& object, int by) {
  std::lock_guard lock(object->mutex);
  object->nlink = static_cast<uint32_t>(static_cast<int64_t>(object->nlink) + by);
  if (by != 0) object->links_changed = true;
  object->attributes.ctime_ns = clock_.realtime_ns();
  if (object->nlink > 0) return mark_attributes_dirty(object);
  space_.release(std::exchange(object->reserved_bytes, 0));  // it is never sealed now
  const PlaceKind kind = object->base.place.kind;
  if (!object->durable || (kind != PlaceKind::kPacked && kind != PlaceKind::kSolo)) return;
  const uint64_t bytes = align_up(object->base.place.length, kBlockBytes);
  if (leaving_.emplace(object->id, bytes).second) space_.add_leaving(bytes);
}

Status StoreImpl::check_new_name(ObjectId parent, std::string_view name) const {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  KVC_ASSIGN(auto found, find_name(parent, name));
  if (found) return fail(Code::kExists, entry_text(parent, name));
  return {};
}

// Gives a new object its first name. Takes the names lock.
Result<ObjectPtr> StoreImpl::new_directory_entry(ObjectId parent, std::string_view name, ObjectPtr object) {
  if (read_only_) return fail(Code::kReadOnly, "the mount is read-only");
  if (space_.free_bytes() == 0) {
    counters_.errors_no_space.fetch_add(1, std::memory_order_relaxed);
    return fail(Code::kNoSpace, fmt::format("{}: the capacity of {} is used up", entry_text(parent, name),
                                            format_size(space_.limit_bytes())));
  }
  std::unique_lock lock(names_mutex_);
  KVC_TRY(check_new_name(parent, name));
  KVC_ASSIGN(ObjectPtr directory, get_locked(parent));
  if (!directory->is_directory())
    return fail(Code::kNotDirectory, fmt::format("object {} is not a directory", parent.value));
  if (directory->nlink == 0) return fail(Code::kNotFound, fmt::format("directory {} was removed", parent.value));
  KVC_ASSIGN(NameState * state, names_->edit(parent, name));
  const bool is_directory = object->is_directory();
  {
    std::lock_guard object_lock(directory->mutex);
    if (directory->attributes.mode & S_ISGID) {
      object->attributes.gid = directory->attributes.gid;
      if (is_directory) object->attributes.mode |= S_ISGID;
    }
  }
  state->child = object->id;
  state->type_bits = object->attributes.mode & S_IFMT;
  object->nlink = is_directory ? 2 : 1;
  {
    std::lock_guard object_lock(object->mutex);
    mark_attributes_dirty(object);
  }
  table_.emplace(object->id, object);
  if (is_directory) change_links(directory, +1);
  touch_directory(parent);
  return object;
}

Result<Stat> StoreImpl::make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) {
  KVC_ASSIGN(ObjectPtr object, new_directory_entry(parent, name, make_object((mode & 07777) | S_IFDIR, 0, caller)));
  kick_bulk();
  return stat(object->id);
}

Result<Stat> StoreImpl::make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev,
                                  const Caller& caller) {
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  ObjectPtr object = make_object(mode, rdev, caller);
  if (object->is_regular()) {
    std::lock_guard lock(object->mutex);
    content_changed(object);
  }
  KVC_ASSIGN(object, new_directory_entry(parent, name, object));
  kick_bulk();
  return stat(object->id);
}

Result<Stat> StoreImpl::make_symlink(ObjectId parent, std::string_view name, std::string_view target,
                                     const Caller& caller) {
  if (target.empty() || target.size() >= 4096)
    return fail(Code::kNameTooLong, fmt::format("a link target of {} bytes; 1 to 4095", target.size()));
  ObjectPtr object = make_object(0777 | S_IFLNK, 0, caller);
  object->size_bytes = target.size();
  object->base.size_bytes = target.size();
  object->base.version = 1;
  const ByteSpan bytes = as_bytes(target);
  object->base.inline_bytes.assign(bytes.begin(), bytes.end());
  KVC_ASSIGN(object, new_directory_entry(parent, name, object));
  kick_bulk();
  return stat(object->id);
}

Result<std::string> StoreImpl::read_symlink(ObjectId id) {
  KVC_ASSIGN(ObjectPtr object, get(id));
  std::lock_guard lock(object->mutex);
  if ((object->attributes.mode & S_IFMT) != S_IFLNK)
    return fail(Code::kInvalid, fmt::format("object {} is not a symbolic link", id.value));
  return std::string(as_text(object->base.inline_bytes));
}

Result<std::pair<Stat, Handle*>> StoreImpl::create(ObjectId parent, std::string_view name, uint32_t mode,
                                                   const OpenRequest& request, const Caller& caller) {
  ObjectPtr object = make_object((mode & 07777) | S_IFREG, 0, caller);
  object->writer_thread = caller.thread_id;
  auto handle = std::make_unique<Handle>();
  handle->object = object;
  handle->request = request;
  handle->thread_id = caller.thread_id;
  {
    std::lock_guard lock(object->mutex);
    object->handles = 1;
    object->opens = 1;
    if (request.write) {
      object->write_handles = object->unflushed_handles = 1;
      handle->unflushed = true;
    }
    content_changed(object);
  }
  object->origin = prefetcher_->created(caller.thread_id, parent, name, object->id, clock_.monotonic_ns());
  KVC_ASSIGN(object, new_directory_entry(parent, name, object));
  {
    std::unique_lock lock(names_mutex_);
    told_stale_.erase(caller.thread_id);  // its repeated open became this
  }
  counters_.open_handles.fetch_add(1, std::memory_order_relaxed);
  counters_.opens.fetch_add(1, std::memory_order_relaxed);
  std::shared_lock lock(names_mutex_);
  std::lock_guard object_lock(object->mutex);
  return std::pair{stat_of(*object), handle.release()};
}

// --- versions of a temporary name (fs/README.md, "the two exceptions") ---

bool StoreImpl::still_written_by_other(Object& object, uint32_t thread_id) {
  // names_mutex_ held. Closed a moment ago and not renamed yet counts too: its writer is about to rename it.
  if (object.published && object.durable) return false;
  std::lock_guard lock(object.mutex);
  if (object.writer_thread == thread_id || object.nlink != 1) return false;
  if (object.unflushed_handles > 0) return true;
  return !object.published && object.last_write_ns != 0 &&
         clock_.monotonic_ns() - object.last_write_ns < kAboutToRenameNs;
}

// names_mutex_ held exclusively: a new empty body under the name, which `object` has; that stays as an older version.
Result<ObjectPtr> StoreImpl::new_version(ObjectId parent, std::string_view name, const ObjectPtr& object, const Caller& caller) {
  KVC_ASSIGN(NameState * state, names_->edit(parent, name));
  ObjectPtr fresh = make_object(object->attributes.mode, 0, caller);
  fresh->attributes.uid = object->attributes.uid;
  fresh->attributes.gid = object->attributes.gid;
  fresh->writer_thread = caller.thread_id;
  fresh->nlink = 1;
  {
    std::lock_guard lock(fresh->mutex);
    mark_attributes_dirty(fresh);
    content_changed(fresh);
    fresh->awaiting_open = true;  // not finished before its maker has opened and written it
    fresh->unflushed_handles = 1;
  }
  state->older_versions.push_back(state->child);
  state->child = fresh->id;
  has_versions_ = true;
  table_.emplace(fresh->id, fresh);
  return fresh;
}

// --- removal ---

Status StoreImpl::unlink_now(ObjectId parent, std::string_view name, const Caller& caller) {
  std::unique_lock lock(names_mutex_);
  KVC_ASSIGN(auto found, names_->find(parent, name));
  if (!found) return fail(Code::kNotFound, entry_text(parent, name));
  if (found->type_bits == S_IFDIR) return fail(Code::kIsDirectory, entry_text(parent, name));
  KVC_ASSIGN(ObjectPtr newest, get_locked(found->child));
  KVC_ASSIGN(NameState * state, names_->edit(parent, name));
  std::vector<ObjectId> removed = state->older_versions;
  removed.push_back(newest->id);
  if (removed.size() > 1) {
    // One of several writers clears up after itself: the others keep theirs.
    const uint32_t process = process_of(caller.thread_id);
    auto own = std::find_if(removed.rbegin(), removed.rend(), [&](ObjectId id) {
      ObjectPtr object = live(id);
      return object && process_of(object->writer_thread) == process;
    });
    if (own != removed.rend()) removed = {*own};
  }
  std::vector<ObjectId> kept = state->older_versions;
  kept.push_back(state->child);
  std::erase_if(kept, [&](ObjectId id) { return std::count(removed.begin(), removed.end(), id) > 0; });
  state->child = kept.empty() ? ObjectId{} : kept.back();
  if (!kept.empty()) kept.pop_back();
  state->older_versions = std::move(kept);
  if (!state->child.valid()) state->erase_durable = true;
  touch_directory(parent);
  for (ObjectId id : removed)
    if (ObjectPtr version = live(id)) {
      change_links(version, -1);
      if (version->nlink == 0) forget_if_idle(version);
    }
  return {};
}

void StoreImpl::unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  if (Status status = unlink_now(parent, name, caller); !status) return done(std::move(status));
  if (!durable_close()) {
    kick_bulk();
    return done({});
  }
  make_durable(nullptr, durable_sync(), std::move(done));
}

void StoreImpl::remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  auto remove = [&]() -> Status {
    std::unique_lock lock(names_mutex_);
    KVC_ASSIGN(auto found, names_->find(parent, name));
    if (!found) return fail(Code::kNotFound, entry_text(parent, name));
    if (found->type_bits != S_IFDIR) return fail(Code::kNotDirectory, entry_text(parent, name));
    KVC_ASSIGN(bool empty, names_->is_empty(found->child));
    if (!empty) return fail(Code::kNotEmpty, entry_text(parent, name));
    KVC_ASSIGN(ObjectPtr object, get_locked(found->child));
    KVC_ASSIGN(ObjectPtr directory, get_locked(parent));
    KVC_ASSIGN(NameState * state, names_->edit(parent, name));
    state->child = {};
    state->erase_durable = true;
    object->nlink = 0;
    change_links(directory, -1);
    touch_directory(parent);
    forget_if_idle(object);
    return {};
  };
  if (Status status = remove(); !status) return done(std::move(status));
  kick_bulk();
  if (!durable_close()) return done({});
  make_durable(nullptr, durable_sync(), std::move(done));
}

// --- link ---

void StoreImpl::link(ObjectId id, ObjectId parent, std::string_view name, Completion<Stat> done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  ObjectPtr object;
  auto add = [&]() -> Status {
    std::unique_lock lock(names_mutex_);
    KVC_ASSIGN(object, get_locked(id));
    if (object->is_directory()) return fail(Code::kPermission, fmt::format("object {} is a directory", id.value));
    if (object->nlink == 0) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
    {
      std::lock_guard object_lock(object->mutex);
      if (object->write_error) return std::unexpected(*object->write_error);
    }
    KVC_TRY(check_new_name(parent, name));
    KVC_ASSIGN(NameState * state, names_->edit(parent, name));
    state->child = id;
    state->type_bits = object->attributes.mode & S_IFMT;
    object->published = true;
    change_links(object, +1);
    touch_directory(parent);
    return {};
  };
  if (Status status = add(); !status) return done(std::unexpected(std::move(status).error()));
  kick_bulk();
  if (!durable_close()) return done(stat(id));
  make_durable(object, durable_sync(), [this, id, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    done(stat(id));
  });
}

// --- rename ---

Status StoreImpl::rename_now(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                             RenameMode mode, const Caller& caller) {
  if (new_name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", new_name.size(), kMaxNameBytes));
  std::unique_lock lock(names_mutex_);
  KVC_ASSIGN(auto from, names_->find(parent, name));
  if (!from) return fail(Code::kNotFound, entry_text(parent, name));
  KVC_ASSIGN(auto to, names_->find(new_parent, new_name));
  if (mode == RenameMode::kNoReplace && to) return fail(Code::kExists, entry_text(new_parent, new_name));
  if (mode == RenameMode::kExchange && !to) return fail(Code::kNotFound, entry_text(new_parent, new_name));

  ObjectId source_id = from->child;
  bool others_keep_name = false;
  if (const NameState* state = names_->dirty(parent, name); state != nullptr && !state->older_versions.empty()) {
    source_id = choose_version(*state, caller.thread_id);
    others_keep_name = true;
  }
  if (to && to->child == source_id && mode != RenameMode::kExchange) return {};  // two names of one object: nothing
  KVC_ASSIGN(ObjectPtr source, get_locked(source_id));
  ObjectPtr target;
  if (to) {
    KVC_ASSIGN(target, get_locked(to->child));
  }
  const bool source_is_directory = source->is_directory();
  {
    std::lock_guard object_lock(source->mutex);
    if (source->write_error) return std::unexpected(*source->write_error);
  }
  if (target && mode == RenameMode::kReplace) {
    if (source_is_directory && !target->is_directory())
      return fail(Code::kNotDirectory, entry_text(new_parent, new_name));
    if (!source_is_directory && target->is_directory())
      return fail(Code::kIsDirectory, entry_text(new_parent, new_name));
    if (source_is_directory) {
      KVC_ASSIGN(bool empty, names_->is_empty(target->id));
      if (!empty) return fail(Code::kNotEmpty, entry_text(new_parent, new_name));
    }
  }

  KVC_ASSIGN(NameState * old_state, names_->edit(parent, name));
  if (mode == RenameMode::kExchange) {
    old_state->child = target->id;
    old_state->type_bits = target->attributes.mode & S_IFMT;
  } else if (others_keep_name) {
    if (old_state->durable == source_id) old_state->erase_durable = true;
    if (old_state->child == source_id) {
      old_state->child = old_state->older_versions.back();
      old_state->older_versions.pop_back();
    } else {
      std::erase(old_state->older_versions, source_id);
    }
    // The kernel now believes that the new name means the version it knew under the old one.
    if (ObjectPtr other = live(old_state->child)) other->relookup.store(true, std::memory_order_relaxed);
    for (ObjectId id : old_state->older_versions)
      if (ObjectPtr other = live(id)) other->relookup.store(true, std::memory_order_relaxed);
  } else {
    old_state->child = {};
    old_state->erase_durable = true;
  }
  KVC_ASSIGN(NameState * new_state, names_->edit(new_parent, new_name));
  std::vector<ObjectId> dropped_versions;
  if (mode != RenameMode::kExchange) dropped_versions = std::move(new_state->older_versions);
  new_state->older_versions.clear();
  new_state->child = source_id;
  new_state->type_bits = source->attributes.mode & S_IFMT;

  if (!source->durable && source->is_regular()) {
    // A version whose record went to another: its body is written anew.
    std::lock_guard object_lock(source->mutex);
    if (!source->content_dirty()) content_changed(source);
  }
  source->published = true;
  source->moved.store(true, std::memory_order_relaxed);
  prefetcher_->published(new_parent, new_name, source_id, source->origin);
  change_links(source, 0);
  if (target) target->published = true;
  const bool target_is_directory = target && target->is_directory();
  int old_parent_links = source_is_directory ? -1 : 0;
  int new_parent_links = source_is_directory ? +1 : 0;
  if (mode == RenameMode::kExchange) {
    old_parent_links += target_is_directory ? +1 : 0;
    new_parent_links -= target_is_directory ? 1 : 0;
    change_links(target, 0);
  } else if (target_is_directory) {
    target->nlink = 0;
    new_parent_links -= 1;
    forget_if_idle(target);
  } else if (target) {
    source->replaced = target->id;
    change_links(target, -1);
    if (target->nlink == 0) forget_if_idle(target);
  }
  for (ObjectId id : dropped_versions)
    if (ObjectPtr version = live(id)) {
      change_links(version, -1);
      forget_if_idle(version);
    }
  auto adjust = [&](ObjectId directory, int by) {
    if (by == 0) return;
    if (auto object = get_locked(directory)) change_links(*object, by);
  };
  if (parent == new_parent) {
    adjust(parent, old_parent_links + new_parent_links);
  } else {
    adjust(parent, old_parent_links);
    adjust(new_parent, new_parent_links);
    touch_directory(new_parent);
  }
  touch_directory(parent);
  return {};
}

void StoreImpl::rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                       RenameMode mode, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  auto finish = [this, parent, new_parent, mode, caller](const std::string& from, const std::string& to,
                                                         StatusCompletion reply) {
    if (Status status = rename_now(parent, from, new_parent, to, mode, caller); !status) return reply(std::move(status));
    kick_bulk();
    if (!durable_close()) return reply({});
    make_durable(nullptr, durable_sync(), std::move(reply));
  };
  if (!durable_close()) return finish(std::string(name), std::string(new_name), std::move(done));

  // The body first: if it cannot be written the old name, and what it would replace, stay as they are.
  ObjectPtr source;
  {
    std::unique_lock lock(names_mutex_);
    auto found = names_->find(parent, name);
    if (found && *found) {
      ObjectId id = (*found)->child;
      if (const NameState* state = names_->dirty(parent, name); state != nullptr && !state->older_versions.empty())
        id = choose_version(*state, caller.thread_id);
      if (auto object = get_locked(id)) source = *object;
    }
  }
  if (!source || !source->is_regular()) return finish(std::string(name), std::string(new_name), std::move(done));
  make_durable(source, durable_sync(),
               [finish, from = std::string(name), to = std::string(new_name), done = std::move(done)](Status status) mutable {
                 if (!status) return done(std::unexpected(std::move(status).error()));
                 finish(from, to, std::move(done));
               });
}

// --- listing ---

Result<std::vector<DirectoryItem>> StoreImpl::list(ObjectId directory, uint64_t after, size_t limit) {
  std::shared_lock lock(names_mutex_);
  KVC_ASSIGN(auto entries, names_->list(directory, after, limit));
  std::vector<DirectoryItem> items;
  items.reserve(entries.size());
  for (auto& entry : entries)
    if (!quarantined_.contains(entry.child))
      items.push_back({std::move(entry.name), entry.child, entry.type_bits, entry.cookie});
  return items;
}

}  // namespace kvcachefs
