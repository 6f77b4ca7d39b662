// Open and close, and what they promise.
#include <algorithm>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "store/base/volume_error.h"
#include "store/store_impl.h"

namespace kvcachefs {

// --- open and close ---

// The object is locked.
void StoreImpl::truncate_at_open(const ObjectPtr& object) {
  if (object->size_bytes == 0 && !object->write_error) return changes_->note_modified(object);  // of an empty file: a change all the same
  object->units.clear();
  object->memory_file.reset();
  file_policy_->expect_size(*object, object->size_bytes);
  if (object->raw_unjournaled && !object->sealing) {
    discards_->remove_later(object->base.place.extent, PlaceKind::kRaw);
    object->base.place = {};
    object->raw_unjournaled = false;
  }
  object->raw.reset();
  object->cut_allocated(0);
  changes_->give_room_up(*object);
  object->size_bytes = object->base_valid_bytes = object->shrunk_to_bytes = 0;
  object->written_anew = true;
  object->write_error.reset();
  changes_->content_changed(object);
}

// Does nothing for other bodies. Blocks for opening the file; no lock held.
Status StoreImpl::open_raw_file(const ObjectPtr& object) {
  auto lock = object->lock();
  const Place place = object->base.place;
  lock.unlock();
  if (place.kind != PlaceKind::kRaw) return {};
  auto opened = extents_->open(place.extent, PlaceKind::kRaw);
  if (!opened) return std::unexpected(error_of_volume(std::move(opened).error()));
  FilePtr raw = *std::move(opened);
  lock.lock();
  // Not if it was emptied since: then its bytes are in RAM, and the next body is another.
  if (!object->raw && object->base.place.kind == PlaceKind::kRaw && !object->content_dirty()) object->raw = std::move(raw);
  return {};
}

// As relatime has it, but for an hour in place of a day: eviction goes by it after a restart.
void StoreImpl::note_read_time(Object& object, const OpenRequest& request) {
  constexpr int64_t kHourNs = 3600LL * 1'000'000'000;
  if (!request.read || request.keeps_read_time || read_only_ || read_times_ == ReadTimes::kNever) return;
  Attributes& attributes = object.attributes;
  const int64_t now = clock_.realtime_ns();
  const bool due = attributes.atime_ns <= std::max(attributes.mtime_ns, attributes.ctime_ns) || now - attributes.atime_ns >= kHourNs;
  if (!due && read_times_ != ReadTimes::kAlways) return;
  attributes.atime_ns = now;
  if (!object.id.is_foreign()) unsaved_reads_.note(object.id, now);
}

Result<Handle*> StoreImpl::open(ObjectId id, const OpenRequest& request, const Caller& caller) {
  auto found = tree_->get(id);
  if (!found) return versions_->gone_before_open(id, std::move(found).error(), request, caller);
  ObjectPtr object = *std::move(found);
  struct Forget {  // unless it is opened: the table would keep it for ever
    StoreImpl& store;
    const ObjectPtr& object;
    bool opened = false;
    ~Forget() {
      if (!opened) store.tree_->forget_when_idle(object);
    }
  } forget{*this, object};
  if (object->is_directory()) return fail(Code::kIsDirectory, fmt::format("object {} is a directory", id.value));
  if (request.write && read_only_) return fail(Code::kReadOnly, "the mount is read-only");
  struct LetGo {  // once it has its handle
    StoreImpl& store;
    ObjectPtr object;
    ~LetGo() {
      if (object) store.versions_->let_go({std::move(object)});
    }
  } kept{*this, nullptr};
  KVC_TRY(versions_->check_stale(object, request, caller, kept.object));
  auto handle = std::make_unique<Handle>();
  handle->request = request;
  handle->thread_id = caller.thread_id;
  {
    std::optional<Tree::Read> tree;
    Object::Lock lock;
    while (true) {
      if (!request.truncate) KVC_TRY(open_raw_file(object));
      tree.emplace(*tree_);  // for nlink
      lock = object->lock();
      if (!object->forgotten) break;
      lock.unlock();  // it was idle; or it is gone, which get() tells
      tree.reset();
      found = tree_->get(id);
      if (!found) return versions_->gone_before_open(id, std::move(found).error(), request, caller);
      object = *std::move(found);
    }
    handle->object = object;
    const bool gone = object->nlink == 0 && object->handles == 0 && !object->lingering && object->kept_for_repeat == 0;
    if (gone) {
      lock.unlock();
      tree.reset();
      return versions_->gone_before_open(id, {Code::kNotFound, 0, {}}, request, caller);
    }
    handle->weight_of_changes = InPlaceChanges::weight_of(*tree, *object, request);
    if (request.truncate) {
      in_place_->note_change(object, handle.get());
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
  forget.opened = true;
  counters_.opens.fetch_add(1, std::memory_order_relaxed);
  counters_.open_handles.fetch_add(1, std::memory_order_relaxed);
  if (request.read && !request.truncate) {
    uint64_t size = 0;
    {
      const auto lock = object->lock();
      size = object->size_bytes;
      if ((request.write || request.direct) && object->base.place.kind == PlaceKind::kSolo)
        backing_->note_read_here();
    }
    cache_->note_used(id);
    accesses_->opened(caller.thread_id, handle.get(), id, size, clock_.monotonic_ns());
  }
  return handle.release();
}

void StoreImpl::release(Handle* handle_pointer) {
  std::unique_ptr<Handle> handle(handle_pointer);
  ObjectPtr object = handle->object;
  if (handle->request.read) accesses_->closed(handle.get(), object->id, clock_.monotonic_ns());
  bool last = false;
  const auto written_bytes = std::invoke([&]() -> std::optional<uint64_t> {
    if (!handle->request.write) return std::nullopt;
    const auto lock = object->lock();
    return handle->changed ? std::optional(object->size_bytes) : std::nullopt;
  });
  if (written_bytes) accesses_->written(object->id, *written_bytes);  // while it is open, or it could go before that is told
  {
    const auto lock = object->lock();
    if (handle->unflushed) {
      --object->unflushed_handles;
      if (object->holds_room()) space_.hope();  // what it replaced can go once it is sealed
    }
    in_place_->judge(*handle);
    if (handle->request.write && --object->write_handles == 0) {
      changes_->undo_what_did_not_fit(object, /*last_writer=*/true);
      changes_->give_room_up(*object);
    }
    last = object->drop_handle();
    if (object->content_dirty()) dirty_.wake();
  }
  if (last && !tree_->stays_in_ram(*object)) tree_->forget_when_idle(object);
  counters_.open_handles.fetch_sub(1);  // at the end: who sees none open finds nothing held by one
}

// --- durability of one object ---

void StoreImpl::flush(Handle* handle, StatusCompletion done) {
  const ObjectPtr& object = handle->object;
  bool dirty = false;
  std::optional<Error> error;
  {
    const auto lock = object->lock();
    if (handle->unflushed) {
      handle->unflushed = false;
      --object->unflushed_handles;
      if (object->holds_room()) space_.hope();
      file_policy_->note_size(object->size_key, handle->thread_id, object->size_bytes);
      if (object->content_dirty()) dirty_.wake();
    }
    if (handle->request.write && object->lacks_a_write()) {
      error = object->write_error;
      changes_->undo_what_did_not_fit(object, /*last_writer=*/false);
    }
    dirty = object->content_dirty() || object->sealing || object->attributes_version != object->attributes_durable;
  }
  if (error) return done(std::unexpected(std::move(*error)));
  // With `sync` also what is journaled already: it may not be synced, nor raw bytes, which leave nothing dirty here.
  if (!handle->request.write || !options_.durable_close() || (!dirty && !options_.durable_sync())) return done({});
  urgent_->make_durable(object, options_.durable_sync(), std::move(done));
}

void StoreImpl::fsync(Handle* handle, StatusCompletion done) {
  const ObjectPtr& object = handle->object;
  std::optional<Error> error;
  {
    const auto lock = object->lock();
    if (object->lacks_a_write()) error = object->write_error;
  }
  if (error) return done(std::unexpected(std::move(*error)));
  urgent_->make_durable(object, true, std::move(done));
}

void StoreImpl::keep_new(ObjectId id, StatusCompletion done) {
  if (!options_.durable_close()) return done({});
  auto object = tree_->get(id);
  urgent_->make_durable(object && (*object)->is_regular() ? *object : nullptr, options_.durable_sync(), std::move(done));
}

void StoreImpl::sync_directory(ObjectId directory, StatusCompletion done) {
  urgent_->make_all_durable(bodies_of_names_in(directory), true, std::move(done));
}

// Bodies without which names of the directory cannot be journaled. One that is being written under the name that it was made
// with is left out: it is absent after a crash, and whole or absent is what its name promises.
std::vector<ObjectPtr> StoreImpl::bodies_of_names_in(ObjectId directory) {
  std::vector<ObjectPtr> bodies;
  const Tree::Read tree = tree_->read();
  tree.names().for_each_dirty_in(directory, [&](const NameState& state) {
    ObjectPtr object = state.child.valid() ? tree.live(state.child) : nullptr;
    if (!object || !object->is_regular()) return;
    const auto lock = object->lock();
    const bool kept = object->finished() || object->published;
    if (object->content_dirty() && kept && object->sealable()) bodies.push_back(std::move(object));
  });
  return bodies;
}

}  // namespace kvcachefs
