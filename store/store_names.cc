// Names: lookup, create, link, unlink, list. All in RAM and on the mapped index; durable answers wait for the
// committer (make_durable) after the change was made.
#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/limits.h"
#include "store/store_impl.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

// --- lookup ---

Result<Stat> StoreImpl::stat_entry(ObjectId parent, std::string_view name, ObjectId id) {
  std::shared_lock lock(names_mutex_);
  const NameState* state = names_->dirty(parent, name);
  KVC_ASSIGN(auto found, find_name(parent, name));
  if (!found || found->child != id || (state != nullptr && !state->older_versions.empty()) || is_one_of_several(id))
    return fail(Code::kNotFound, entry_text(parent, name));
  KVC_ASSIGN(Stat stat, stat_locked(id));
  // The kernel would answer probes of it unheard: what they were told of could be evicted at once.
  stat.brief = evictor_->gives_leases();
  return stat;
}

// What clients see under a name: a quarantined object is absent (and its name may be taken by a new one).
Result<std::optional<Namespace::Found>> StoreImpl::find_name(ObjectId parent, std::string_view name) const {
  KVC_ASSIGN(auto found, names_->find(parent, name));
  if (found && is_quarantined(found->child)) return std::nullopt;
  return found;
}

bool StoreImpl::is_quarantined(ObjectId id) const {  // names_mutex_ held
  return quarantined_count_.load(std::memory_order_relaxed) > 0 && quarantined_.contains(id);
}

Result<Stat> StoreImpl::lookup(ObjectId parent, std::string_view name, const Caller& caller) {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  bool to_be_written = false;
  {
    std::shared_lock lock(names_mutex_);
    const NameState* state = names_->dirty(parent, name);
    const auto told = stale_opens_.told(caller.thread_id);
    const bool unknown = caller.thread_id == 0 && stale_opens_.unknown_was_told();
    const bool versions = unknown || (state != nullptr && !state->older_versions.empty()) || told;
    if (!versions) {
      KVC_ASSIGN(auto found, find_name(parent, name));
      const ObjectId child = found ? found->child : ObjectId{};
      Result<Stat> stat = found ? stat_locked(child) : fail(Code::kNotFound, entry_text(parent, name));
      if (stat) stat->brief = is_one_of_several(child);
      const auto body = body_probed_by(parent, name, found.has_value());
      if (stat && found->type_bits == S_IFREG) evictor_->will_be_told(child);
      lock.unlock();  // others wait for the tracker's lock, too
      accesses_->probed(caller.thread_id, parent, name, child, found && found->type_bits == S_IFDIR,
                          stat ? stat->size_bytes : 0, clock_.monotonic_ns());
      if (body) accesses_->probed(caller.thread_id, parent, body->name, body->id, false, body->size_bytes, clock_.monotonic_ns());
      if (!found) probes_.missed(caller.thread_id, parent, name, why_absent(parent, name));
      else if (found->type_bits != S_IFDIR) probes_.hit();
      return stat;
    }
    to_be_written = told && told->truncate;
  }
  const KnownProcesses processes(writers_of(parent, name, caller, to_be_written));
  std::unique_lock lock(names_mutex_);
  KVC_ASSIGN(auto found, find_name(parent, name));
  StaleOpens::Released released;
  const auto told = stale_opens_.note_lookup(caller.thread_id, parent, name, found.has_value(), released);
  let_go_locked(released);
  if (!found) {
    lock.unlock();
    probes_.missed(caller.thread_id, parent, name, why_absent(parent, name));
    return fail(Code::kNotFound, entry_text(parent, name));
  }
  const NameState* state = names_->dirty(parent, name);
  const bool several = state != nullptr && !state->older_versions.empty();
  ObjectId chosen = several ? choose_version_to_read(*state, caller.thread_id) : found->child;
  bool brief = several;
  if (told && told->truncate) {
    // It wants to write the name anew while another is at it: it gets a version of its own.
    KVC_ASSIGN(ObjectPtr own, version_to_write(parent, name, chosen, caller));
    brief |= own->id != chosen;
    chosen = own->id;
  }
  if (found->type_bits == S_IFREG) evictor_->will_be_told(chosen);
  if (found->type_bits != S_IFDIR) {
    probes_.hit();
    keep_for_repeat(caller.thread_id, chosen);
  }
  KVC_ASSIGN(Stat stat, stat_locked(chosen));
  // A rename moves the kernel's entry, with its time-out, to the new name, where another version may be meant.
  stat.brief = brief || is_one_of_several(chosen);
  stat.to_be_written = told && told->write;
  return stat;
}

// No lock held.
ProbeCounts::Miss StoreImpl::why_absent(ObjectId parent, std::string_view name) const {
  if (quarantined_count_.load(std::memory_order_relaxed) > 0) {
    std::shared_lock lock(names_mutex_);
    if (const auto found = names_->find(parent, name); found && *found) return ProbeCounts::Miss::kQuarantined;
  }
  return evictor_->was_evicted(parent, name) ? ProbeCounts::Miss::kEvicted : ProbeCounts::Miss::kNeverSeen;
}

// --- new entries ---

void StoreImpl::mark_attributes_dirty(const ObjectPtr& object) { kvcachefs::mark_attributes_dirty(object, *record_space_, dirty_); }

void StoreImpl::touch_directory(ObjectId directory) {
  auto object = get_locked(directory);
  if (!object) return;
  const auto lock = (*object)->lock();
  (*object)->attributes.mtime_ns = (*object)->attributes.ctime_ns = clock_.realtime_ns();
  mark_attributes_dirty(*object);
}

void StoreImpl::change_links(const ObjectPtr& object, int by) {
  const auto lock = object->lock();
  object->nlink = static_cast<uint32_t>(static_cast<int64_t>(object->nlink) + by);
  object->attributes.ctime_ns = clock_.realtime_ns();
  if (object->nlink > 0) return mark_attributes_dirty(object);
  unlinked_.add(object->id);
  if (!object->durable) {
    if (object->sealing) leaving_.insert(object->id);  // the index may know it before its name is known to be gone
    const uint64_t reserved = object->reserved_bytes + object->sealing_reserved_bytes;
    if (reserved > 0) space_.add_leaving(object->id, reserved);
    return;
  }
  const PlaceKind kind = object->base.place.kind;
  const bool has_place = kind == PlaceKind::kPacked || kind == PlaceKind::kSolo;
  const uint64_t bytes = has_place ? align_up(object->base.place.length, kBlockBytes) : 0;
  leaving_.insert(object->id);
  space_.add_leaving(object->id, bytes);
  space_.hope();  // also without a body: its record is room once it is in no checkpoint any more
}

// names_mutex_ held exclusively. The kernel may still know a directory that was removed: nothing gets a name there.
Result<ObjectPtr> StoreImpl::directory_for_entry(ObjectId id) {
  KVC_ASSIGN(ObjectPtr directory, get_locked(id));
  if (!directory->is_directory()) return fail(Code::kNotDirectory, fmt::format("object {} is not a directory", id.value));
  if (directory->nlink == 0) return fail(Code::kNotFound, fmt::format("directory {} was removed", id.value));
  return directory;
}

Status StoreImpl::check_new_name(ObjectId parent, std::string_view name) const {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  KVC_ASSIGN(auto found, find_name(parent, name));
  if (found) return fail(Code::kExists, entry_text(parent, name));
  return {};
}

// names_mutex_ held. A name whose chunk is in quarantine reads as absent; who gives it anew takes it from that chunk.
void StoreImpl::take_from_quarantined(ObjectId id) {
  if (!id.valid()) return;
  auto object = get_locked(id);
  if (!object) return;
  change_links(*object, -1);
  forget_if_idle(*object);
}

// Refuses what makes journal and index grow and reserves nothing, where nothing is free. Any lock may be held.
std::unexpected<Error> StoreImpl::no_room_for_record(const std::string& what) {
  counters_.errors_no_space.fetch_add(1, std::memory_order_relaxed);
  space_waiters_.ask();  // for the next try
  return fail(Code::kNoSpace, fmt::format("{}: the capacity of {} is used up", what, format_size(space_.limit_bytes())));
}

// Gives a new object its first name. Takes the names lock.
Result<ObjectPtr> StoreImpl::new_directory_entry(ObjectId parent, std::string_view name, ObjectPtr object) {
  if (read_only_) return fail(Code::kReadOnly, "the mount is read-only");
  std::unique_lock lock(names_mutex_);
  KVC_TRY(check_new_name(parent, name));
  KVC_ASSIGN(ObjectPtr directory, directory_for_entry(parent));
  if (is_full()) return no_room_for_record(entry_text(parent, name));
  KVC_ASSIGN(Namespace::Edit state, names_->edit(parent, name));
  take_from_quarantined(state->child);
  const bool is_directory = object->is_directory();
  {
    const auto object_lock = directory->lock();
    if (directory->attributes.mode & S_ISGID) {
      object->attributes.gid = directory->attributes.gid;
      if (is_directory) object->attributes.mode |= S_ISGID;
    }
  }
  record_space_->accept(kNameRecordBytes + name.size());
  state->child = object->id;
  state->type_bits = object->type_bits;
  object->nlink = is_directory ? 2 : 1;
  object->temporary = object->is_regular() && temporary_names_.created(parent, name);
  {
    const auto object_lock = object->lock();
    mark_attributes_dirty(object);
  }
  table_.emplace(object->id, object);
  if (is_directory) change_links(directory, +1);
  touch_directory(parent);
  return object;
}

Result<Stat> StoreImpl::make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) {
  KVC_ASSIGN(ObjectPtr object, new_directory_entry(parent, name, make_object((mode & 07777) | S_IFDIR, 0, caller)));
  accesses_->directory_named(caller.thread_id, parent, name, object->id);
  probes_.stored(caller.thread_id, parent, name);
  dirty_.wake();
  return stat(object->id);
}

Result<Stat> StoreImpl::make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev,
                                  const Caller& caller) {
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  KVC_ASSIGN(ObjectPtr object, new_directory_entry(parent, name, make_object(mode, rdev, caller)));
  probes_.stored(caller.thread_id, parent, name);
  if (object->is_regular()) {  // not before: a lane passes over what has neither name nor handle
    const auto lock = object->lock();
    content_changed(object);
    object->last_write_ns = 0;  // nobody is writing it
  }
  dirty_.wake();
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
  probes_.stored(caller.thread_id, parent, name);
  dirty_.wake();
  return stat(object->id);
}

Result<std::string> StoreImpl::read_symlink(ObjectId id) {
  auto target_of = [&](uint32_t type_bits, const Body& body) -> Result<std::string> {
    if (type_bits != S_IFLNK) return fail(Code::kInvalid, fmt::format("object {} is not a symbolic link", id.value));
    return std::string(as_text(body.inline_bytes));
  };
  if (ObjectPtr object = find_live(id)) {
    const auto lock = object->lock();
    return target_of(object->type_bits, object->base);
  }
  KVC_ASSIGN(auto record, index_->find_object(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return target_of(record->attributes.mode & S_IFMT, record->body);
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
    const auto lock = object->lock();
    object->handles = 1;
    object->opens = 1;
    if (request.write) {
      object->write_handles = object->unflushed_handles = 1;
      handle->unflushed = true;
    }
    content_changed(object);
  }
  probes_.stored(caller.thread_id, parent, name);
  ChainOrigin origin = accesses_->created(caller.thread_id, parent, name, object->id, clock_.monotonic_ns());
  object->origin = origin;
  {
    const uint64_t guessed_bytes = file_policy_->guess_size(object->origin.stem, caller.thread_id);
    const auto lock = object->lock();
    object->size_key = object->origin.stem;
    file_policy_->expect_size(*object, guessed_bytes);
  }
  if (auto entered = new_directory_entry(parent, name, object); !entered) {
    const auto lock = object->lock();
    object->handles = object->write_handles = object->unflushed_handles = 0;  // a lane drops it from the queue
    return std::unexpected(std::move(entered).error());
  }
  if (ObjectPtr kept = stale_opens_.looked_again(caller.thread_id, nullptr).kept) let_go({std::move(kept)});  // its repeated open became this
  if (origin.announced) accesses_->published(caller.thread_id, parent, name, object->id, origin, 0);  // written in place
  counters_.open_handles.fetch_add(1, std::memory_order_relaxed);
  counters_.opens.fetch_add(1, std::memory_order_relaxed);
  std::shared_lock lock(names_mutex_);
  const auto object_lock = object->lock();
  return std::pair{stat_of(*object), handle.release()};
}

// --- removal ---

Status StoreImpl::unlink_now(ObjectId parent, std::string_view name, const Caller& caller) {
  const KnownProcesses processes(writers_of(parent, name, caller));
  std::unique_lock lock(names_mutex_);
  KVC_ASSIGN(auto found, names_->find(parent, name));
  if (!found) return fail(Code::kNotFound, entry_text(parent, name));
  if (found->type_bits == S_IFDIR) return fail(Code::kIsDirectory, entry_text(parent, name));
  KVC_ASSIGN(ObjectPtr newest, get_locked(found->child));
  KVC_ASSIGN(Namespace::Edit state, names_->edit(parent, name));
  std::vector<ObjectId> removed = state->older_versions;
  removed.push_back(newest->id);
  if (removed.size() > 1) {
    // One of several writers clears up after itself: the others keep theirs.
    const uint32_t process = process_of(caller.thread_id);
    auto own = std::find_if(removed.rbegin(), removed.rend(), [&](ObjectId id) {
      ObjectPtr object = live(id);
      return object && writer_process(*object) == process;
    });
    if (own != removed.rend()) removed = {*own};
  }
  std::vector<ObjectId> kept = state->older_versions;
  kept.push_back(state->child);
  std::erase_if(kept, [&](ObjectId id) { return std::count(removed.begin(), removed.end(), id) > 0; });
  state->child = kept.empty() ? ObjectId{} : kept.back();
  if (!kept.empty()) kept.pop_back();
  state->older_versions = std::move(kept);
  if (!state->child.valid() || std::count(removed.begin(), removed.end(), state->durable) > 0) state->erase_durable = true;
  record_space_->accept(kNameRecordBytes + name.size());
  touch_directory(parent);
  for (ObjectId id : removed)
    if (ObjectPtr version = live(id)) {
      change_links(version, -1);
      if (version->nlink == 0) forget_if_idle(version);
    }
  kill_point("name-removed");
  return {};
}

void StoreImpl::unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  if (Status status = unlink_now(parent, name, caller); !status) return done(std::move(status));
  if (!options_.durable_close()) {
    dirty_.wake();
    return done({});
  }
  make_durable(nullptr, options_.durable_sync(), std::move(done));
}

// names_mutex_ held exclusively. kNotEmpty if clients see a name in it; what they do not see, names in quarantine, goes with
// it: before it, as the journal has to have it.
Status StoreImpl::clear_directory(ObjectId directory) {
  constexpr size_t kPageNames = 64;
  std::vector<NameEntry> left;
  for (uint64_t after = 0;;) {
    KVC_ASSIGN(auto page, names_->list(directory, after, kPageNames));
    if (page.empty()) break;
    for (NameEntry& entry : page) {
      if (!is_quarantined(entry.child)) return fail(Code::kNotEmpty, fmt::format("directory {}: '{}'", directory.value, entry.name));
      after = entry.cookie;
      left.push_back(std::move(entry));
    }
  }
  for (const NameEntry& entry : left) {
    KVC_ASSIGN(Namespace::Edit state, names_->edit(directory, entry.name));
    std::vector<ObjectId> versions = std::exchange(state->older_versions, {});
    versions.push_back(std::exchange(state->child, {}));
    state->erase_durable = true;
    for (ObjectId id : versions) take_from_quarantined(id);
  }
  return {};
}

// names_mutex_ held exclusively. It lost its name. The batch under way may bring it into the index just now.
void StoreImpl::drop_directory(const ObjectPtr& directory) {
  directory->nlink = 0;
  {
    const auto lock = directory->lock();
    note_removed(stat_of(*directory));
  }
  unlinked_.add(directory->id);
  forget_if_idle(directory);
  leaving_.insert(directory->id);
}

void StoreImpl::remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  auto remove = [&]() -> Status {
    std::unique_lock lock(names_mutex_);
    KVC_ASSIGN(auto found, names_->find(parent, name));
    if (!found) return fail(Code::kNotFound, entry_text(parent, name));
    if (found->type_bits != S_IFDIR) return fail(Code::kNotDirectory, entry_text(parent, name));
    KVC_TRY(clear_directory(found->child));
    KVC_ASSIGN(ObjectPtr object, get_locked(found->child));
    KVC_ASSIGN(ObjectPtr directory, get_locked(parent));
    KVC_ASSIGN(Namespace::Edit state, names_->edit(parent, name));
    state->child = {};
    state->erase_durable = true;
    drop_directory(object);
    change_links(directory, -1);
    touch_directory(parent);
    return {};
  };
  if (Status status = remove(); !status) return done(std::move(status));
  dirty_.wake();
  if (!options_.durable_close()) return done({});
  make_durable(nullptr, options_.durable_sync(), std::move(done));
}

// --- link ---

void StoreImpl::link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  ObjectPtr object;
  auto add = [&]() -> Status {
    std::unique_lock lock(names_mutex_);
    KVC_ASSIGN(object, get_locked(id));
    if (object->is_directory()) return fail(Code::kPermission, fmt::format("object {} is a directory", id.value));
    if (object->nlink == 0) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
    {
      const auto object_lock = object->lock();
      if (object->write_error) return std::unexpected(*object->write_error);
    }
    KVC_TRY(check_new_name(parent, name));
    KVC_TRY(directory_for_entry(parent));
    if (is_full()) return no_room_for_record(entry_text(parent, name));
    KVC_ASSIGN(Namespace::Edit state, names_->edit(parent, name));
    take_from_quarantined(state->child);
    record_space_->accept(kNameRecordBytes + name.size());
    state->child = id;
    state->type_bits = object->type_bits;
    object->published = true;
    uint64_t size_bytes = 0;
    {
      const auto object_lock = object->lock();
      object->named_version = object->content_version;
      size_bytes = object->size_bytes;
    }
    accesses_->published(caller.thread_id, parent, name, id, object->origin, size_bytes);
    change_links(object, +1);
    touch_directory(parent);
    return {};
  };
  if (Status status = add(); !status) {
    if (object) forget_when_idle(object);
    return done(std::unexpected(std::move(status).error()));
  }
  dirty_.wake();
  if (!options_.durable_close()) return done(stat(id));
  make_durable(object, options_.durable_sync(), [this, id, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    done(stat(id));
  });
}

// --- listing ---

Result<std::vector<DirectoryItem>> StoreImpl::list(ObjectId directory, uint64_t after, size_t limit) {
  std::shared_lock lock(names_mutex_);
  while (true) {
    KVC_ASSIGN(auto entries, names_->list(directory, after, limit));
    std::vector<DirectoryItem> items;
    items.reserve(entries.size());
    for (auto& entry : entries)
      if (!is_quarantined(entry.child))
        items.push_back({std::move(entry.name), entry.child, entry.type_bits, entry.cookie});
    if (!items.empty() || entries.empty()) return items;  // nothing would mean: this is the end
    after = entries.back().cookie;
  }
}

}  // namespace kvcachefs
