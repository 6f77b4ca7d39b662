#include "store/requests/open_files.h"

#include <algorithm>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "store/base/volume_error.h"
#include "store/tree/journaled_version.h"

namespace kvcachefs {

namespace {
// Of a raw file that lacks bytes of a failed write all else is made durable, and then the failure is told.
Status error_or(Status status, const std::optional<Error>& error) { return status && error ? Status(std::unexpected(*error)) : std::move(status); }
}  // namespace

// --- open and close ---

// The object is locked.
void OpenFiles::truncate_at_open(const ObjectPtr& object) {
  if (object->size_bytes == 0 && !object->write_error) return parts_.changes.note_modified(object);  // an empty file: that counts as a change too
  object->units.clear();
  object->memory_file.reset();
  parts_.file_policy.expect_size(*object, object->size_bytes);
  if (object->raw_unjournaled && !object->sealing) {
    parts_.discards.remove_later(object->base.place.extent, PlaceKind::kRaw);
    object->base.place = {};
    object->raw_unjournaled = false;
  }
  object->raw.reset();
  object->cut_allocated(0);
  parts_.changes.give_room_up(*object);
  object->size_bytes = object->base_valid_bytes = object->shrunk_to_bytes = 0;
  object->written_anew = true;
  object->write_error.reset();
  parts_.changes.content_changed(object);
}

// Opens the backing file of a raw body; does nothing for other bodies. Blocks on the open. Caller holds no lock.
Status OpenFiles::open_raw_file(const ObjectPtr& object) {
  auto lock = object->lock();
  const Place place = object->base.place;
  lock.unlock();
  if (place.kind != PlaceKind::kRaw) return {};
  auto opened = parts_.extents.open(place.extent, PlaceKind::kRaw);
  if (!opened) return std::unexpected(error_of_volume(std::move(opened).error()));
  FilePtr raw = *std::move(opened);
  lock.lock();
  // Not if the body was emptied since: then its bytes are in RAM, and its next version is another body.
  if (!object->raw && object->base.place.kind == PlaceKind::kRaw && !object->content_dirty()) object->raw = std::move(raw);
  return {};
}

// As relatime, but after an hour in place of a day: eviction goes by the read time after a restart.
void OpenFiles::note_read_time(Object& object, const OpenRequest& request) {
  constexpr int64_t kHourNs = 3600LL * 1'000'000'000;
  if (!request.read || request.keeps_read_time || parts_.read_only || parts_.read_times == ReadTimes::kNever) return;
  Attributes& attributes = object.attributes;
  const int64_t now = parts_.clock.realtime_ns();
  const bool due = attributes.atime_ns <= std::max(attributes.mtime_ns, attributes.ctime_ns) || now - attributes.atime_ns >= kHourNs;
  if (!due && parts_.read_times != ReadTimes::kAlways) return;
  attributes.atime_ns = now;
  if (!object.id.is_foreign()) parts_.unsaved_reads.note(object.id, now, bytes_of(object.attributes.xattrs));
}

Result<Handle*> OpenFiles::open(ObjectId id, const OpenRequest& request, const Caller& caller) {
  if ((request.write || request.truncate) && parts_.read_only) return fail(Code::kReadOnly, "the mount is read-only");
  auto found = parts_.versions.object_to_open(id, request, caller);
  if (!found) return parts_.versions.gone_before_open(id, std::move(found).error(), request, caller);
  ObjectPtr object = *std::move(found);
  Tree::ForgetAfter forget(parts_.tree, object);  // unless the open succeeds
  if (object->is_directory()) return fail(Code::kIsDirectory, fmt::format("object {} is a directory", id.value));
  // The kernel may still know its name.
  const bool is_absent = !request.truncate && parts_.tree.has_quarantined() && !object->outdated.load().valid() && parts_.tree.read().is_quarantined(object->id);
  if (is_absent) return parts_.versions.gone_before_open(id, {Code::kNotFound, 0, {}}, request, caller);
  struct LetGo {  // releases `kept` once the object has its handle
    OpenFiles& files;
    ObjectPtr object;
    ~LetGo() {
      if (object) files.parts_.versions.let_go({std::move(object)});
    }
  } kept{*this, nullptr};
  KVC_TRY(parts_.versions.check_stale(object, request, caller, kept.object));
  auto handle = std::make_unique<Handle>();
  handle->request = request;
  handle->thread_id = caller.thread_id;
  {
    std::optional<Tree::Read> tree;
    Object::Lock lock;
    while (true) {
      if (!request.truncate) KVC_TRY(open_raw_file(object));
      tree.emplace(parts_.tree);  // for nlink
      lock = object->lock();
      const bool forgotten = object->forgotten;  // as idle; or it is gone, which get() tells
      const bool gone = object->nlink == 0 && object->handles == 0 && !object->lingering && object->kept_for_repeat == 0;
      if (!forgotten && !gone) break;
      lock.unlock();
      tree.reset();
      found = forgotten ? parts_.tree.get(id) : fail(Code::kNotFound, {});
      // Its node has changed and removed it since the lookup: the thread opens what it found, as in object_to_open().
      const bool may_be_kept = kept.object && kept.object != object && kept.object->id == object->id;
      if (!found && found.error().code == Code::kNotFound && may_be_kept) found = kept.object;
      if (!found) return parts_.versions.gone_before_open(id, std::move(found).error(), request, caller);
      object = *std::move(found);
      forget.take(object);
    }
    handle->object = object;
    handle->weight_of_changes = InPlaceChanges::weight_of(*tree, *object, request);
    if (request.truncate) {
      parts_.in_place.note_change(object, handle.get());
      truncate_at_open(object);
    }
    object->add_handle();
    ++object->opens;
    if (request.write && object->write_handles++ == 0) object->written_anew = object->size_bytes == 0;
    if (request.truncate) {
      handle->unflushed = true;
      if (!std::exchange(object->awaiting_open, false)) ++object->unflushed_handles;
    }
    note_read_time(*object, request);
  }
  forget.keep();
  parts_.counters.opens.fetch_add(1, std::memory_order_relaxed);
  parts_.counters.open_handles.fetch_add(1, std::memory_order_relaxed);
  if (request.read && !request.truncate) {
    uint64_t size = 0;
    {
      const auto lock = object->lock();
      size = object->size_bytes;
      if ((request.write || request.direct) && object->base.place.kind == PlaceKind::kSolo)
        parts_.backing.note_read_here();
    }
    parts_.cache.note_used(object->id);
    parts_.accesses.opened(caller.thread_id, handle.get(), object->id, size, parts_.clock.monotonic_ns());
  }
  return handle.release();
}

void OpenFiles::release(Handle* handle_pointer) {
  std::unique_ptr<Handle> handle(handle_pointer);
  ObjectPtr object = handle->object;
  if (handle->request.read) parts_.accesses.closed(handle.get(), object->id, parts_.clock.monotonic_ns());
  bool last = false;
  const auto written_bytes = std::invoke([&]() -> std::optional<uint64_t> {
    if (!handle->request.write) return std::nullopt;
    const auto lock = object->lock();
    return handle->changed ? std::optional(object->size_bytes) : std::nullopt;
  });
  if (written_bytes) parts_.accesses.written(object->id, *written_bytes);  // before the close: once closed it could be evicted
  {
    const auto lock = object->lock();
    if (handle->end_writing()) {
      if (object->holds_room()) parts_.space.hope();  // the object that it replaced can go once this one is sealed
    }
    parts_.in_place.judge(*handle);
    if (handle->request.write && --object->write_handles == 0) {
      parts_.changes.undo_what_did_not_fit(object, /*last_writer=*/true);
      parts_.changes.give_room_up(*object);
    }
    last = object->drop_handle();
    if (object->content_dirty()) parts_.dirty.wake();
  }
  if (last) parts_.cache.note_closed(object);
  if (last && !parts_.tree.stays_in_ram(*object)) parts_.tree.forget_when_idle(object);
  if (last && object->outdated.load().valid()) parts_.cache.forget(object);
  parts_.counters.open_handles.fetch_sub(1);  // last: a caller that sees 0 finds nothing held by a handle
}

// --- durability of one object ---

void OpenFiles::flush(Handle* handle, StatusCompletion done) {
  const ObjectPtr& object = handle->object;
  bool dirty = false, raw = false;
  std::optional<Error> error;
  {
    const auto lock = object->lock();
    if (handle->end_writing()) {
      if (object->holds_room()) parts_.space.hope();
      parts_.file_policy.note_size(object->size_key, handle->thread_id, object->size_bytes);
      if (object->content_dirty()) parts_.dirty.wake();
    }
    if (handle->request.write && object->lacks_a_write()) {
      error = object->write_error;
      parts_.changes.undo_what_did_not_fit(object, /*last_writer=*/false);
    }
    raw = object->raw != nullptr;
    dirty = object->content_dirty() || object->sealing || object->attributes_version != object->attributes_durable;
  }
  if (error && !raw) return done(std::unexpected(std::move(*error)));
  // With `sync` also if nothing is dirty: the body may be journaled and not synced; raw bytes leave nothing dirty here.
  if (!handle->request.write || !parts_.options.durable_close() || (!dirty && !parts_.options.durable_sync())) return done(error_or({}, error));
  parts_.urgent.make_durable(object, parts_.options.durable_sync(), [error = std::move(error), done = std::move(done)](Status status) mutable {
    done(error_or(std::move(status), error));
  });
}

void OpenFiles::fsync(Handle* handle, StatusCompletion done) {
  const ObjectPtr& object = handle->object;
  std::optional<Error> error;
  uint32_t writes = 0;
  bool raw = false, lost_its_record = false;
  {
    const auto lock = object->lock();
    if (object->lacks_a_write()) error = object->write_error;
    writes = handle->writes;
    raw = object->raw != nullptr;
    lost_its_record = !object->durable && !object->content_dirty();
  }
  if (error && !raw) return done(std::unexpected(std::move(*error)));
  if (lost_its_record) {
    const Tree::Read tree = parts_.tree.read();
    tree.names().for_each_dirty_with(object->id, [&](const NameState& state) { journal_former_version(tree, state, parts_.changes); });
  }
  parts_.urgent.make_all_durable(bodies_to_sync(object), true, [this, handle, writes, error = std::move(error), done = std::move(done)](Status status) mutable {
    if (status) {
      Object& body = *handle->object;
      const auto lock = body.lock();
      if (handle->writes == writes) handle->note_synced();
      if (body.content_dirty()) parts_.dirty.wake();  // another program's changes can be recorded now
      body.written_anew = false;                      // a change that does not fit leaves what was synced
    }
    done(error_or(std::move(status), error));
  });
}

// With a file that has no name any more those that took its names: until the journal has that, a crash brings the file back under a name, without what
// was written since it was journaled.
std::vector<ObjectPtr> OpenFiles::bodies_to_sync(const ObjectPtr& object) {
  std::vector<ObjectPtr> bodies{object};
  {
    const auto lock = object->lock();
    if (object->nlink > 0 || !object->durable) return bodies;
  }
  const Tree::Read tree = parts_.tree.read();
  tree.names().for_each_dirty_of(object->id, [&](const NameState& state) {
    ObjectPtr taker = state.child.valid() ? tree.live(state.child) : nullptr;
    if (!taker || taker == object || !taker->is_regular()) return;
    const auto lock = taker->lock();
    if (taker->content_dirty() && taker->sealable()) bodies.push_back(std::move(taker));
  });
  return bodies;
}

void OpenFiles::keep_new(ObjectId id, StatusCompletion done) {
  if (!parts_.options.durable_close()) return done({});
  const ObjectPtr object = parts_.tree.find(id);  // null: it was journaled meanwhile and forgotten as idle
  parts_.urgent.make_durable(object && object->is_regular() ? object : nullptr, parts_.options.durable_sync(), std::move(done));
}

void OpenFiles::sync_directory(ObjectId directory, StatusCompletion done) {
  parts_.urgent.make_all_durable(bodies_of_names_in(directory), true, std::move(done));
}

// The bodies without which names of the directory cannot be journaled. A body that is being written under the name that it was made
// with is left out: it is absent after a crash, and its name promises only whole or absent.
std::vector<ObjectPtr> OpenFiles::bodies_of_names_in(ObjectId directory) {
  std::vector<ObjectPtr> bodies;
  const Tree::Read tree = parts_.tree.read();
  tree.names().for_each_dirty_in(directory, [&](const NameState& state) {
    journal_former_version(tree, state, parts_.changes);
    ObjectPtr object = tree.live(version_to_journal(tree, state));
    if (!object || !object->is_regular()) return;
    const auto lock = object->lock();
    if (object->content_dirty() && (object->finished() || object->published) && object->sealable()) bodies.push_back(std::move(object));
  });
  return bodies;
}

}  // namespace kvcachefs
