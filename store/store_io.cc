// Open, read, write, close and what they promise. A request is tried under the object's mutex; when it lacks memory, bytes of the
// volume, or space, it lets go of every lock, gets that, and is tried again. Nothing waits on a thread of the caller.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "store/store_impl.h"
#include "store/store_io.h"

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

// Kept in RAM: no record of the journal is made for a read.
void StoreImpl::note_read_time(Object& object, const OpenRequest& request) const {
  constexpr int64_t kDayNs = 24LL * 3600 * 1'000'000'000;
  if (!request.read || request.keeps_read_time || read_only_ || read_times_ == ReadTimes::kNever) return;
  Attributes& attributes = object.attributes;
  const int64_t now = clock_.realtime_ns();
  const bool due = attributes.atime_ns <= std::max(attributes.mtime_ns, attributes.ctime_ns) || now - attributes.atime_ns >= kDayNs;
  if (due || read_times_ == ReadTimes::kAlways) attributes.atime_ns = now;
}

Result<Handle*> StoreImpl::open(ObjectId id, const OpenRequest& request, const Caller& caller) {
  auto found = tree_->get(id);
  if (!found) return gone_before_open(id, std::move(found).error(), request, caller);
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
      if (object) store.let_go({std::move(object)});
    }
  } kept{*this, nullptr};
  KVC_TRY(check_stale(object, request, caller, kept.object));
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
      if (!found) return gone_before_open(id, std::move(found).error(), request, caller);
      object = *std::move(found);
    }
    handle->object = object;
    const bool gone = object->nlink == 0 && object->handles == 0 && !object->lingering && object->kept_for_repeat == 0;
    if (gone) {
      lock.unlock();
      tree.reset();
      return gone_before_open(id, {Code::kNotFound, 0, {}}, request, caller);
    }
    handle->weight_of_changes = weight_of_changes(*tree, *object, request);
    if (request.truncate) {
      note_change(object, handle.get());
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
  {
    const auto lock = object->lock();
    if (handle->unflushed) {
      --object->unflushed_handles;
      if (object->holds_room()) space_.hope();  // what it replaced can go once it is sealed
    }
    judge_changes(*handle);
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

// --- write ---

Error StoreImpl::no_space(const Object& object, uint64_t bytes) const {
  if (auto other = refusals_.gone()) return *std::move(other);
  return {Code::kNoSpace, 0,
          fmt::format("object {}: {} do not fit the capacity of {}", object.id.value, format_size(bytes),
                      format_size(space_.limit_bytes()))};
}

Error too_big_to_seal(const Object& object, uint64_t size_bytes) {
  return {Code::kTooBig, 0,
          fmt::format("object {}: {} is past the {} that a file with checksums can have: size it as an empty file "
                      "(ftruncate), above the option raw_above, and it has none",
                      object.id.value, format_size(size_bytes), format_size(kMaxSealedBytes))};
}

StoreImpl::Progress StoreImpl::try_write(const ObjectPtr& object_pointer, Handle* handle, WriteSource source,
                                         WriteAttempt& attempt) {
  Object& object = *object_pointer;
  const auto lock = object.lock();
  if (object.raw) return Progress::kIsRaw;  // since it was asked
  const bool zeroing = source.bytes.empty();
  uint64_t end = source.offset + source.length();
  if (zeroing) end = std::min(end, object.size_bytes);
  if (end <= source.offset) return Progress::kDone;
  const uint64_t new_size = std::max(object.size_bytes, end);
  if (!changes_->reserve_space(object, new_size)) return Progress::kNeedsSpace;

  const size_t first = unit_of(source.offset), last = unit_of(end - 1);
  if (object.clones_a_block(first, last, end)) object.memory_file.reset();
  if (!zeroing && object.lacks_file_memory(first, last + 1, attempt.file)) return Progress::kNeedsMemory;
  uint64_t needed = 0;
  attempt.load_count = 0;
  auto bounds = [&](size_t index) {
    const uint64_t unit_start = index * kUnitBytes;
    return std::pair{std::max(source.offset, unit_start) - unit_start, std::min(end - unit_start, kUnitBytes)};
  };
  auto hole = [&](size_t index) {  // zeroing what is zeros already
    const Unit* unit = object.unit_or_null(index);
    return zeroing && !object.needs_load(index) && (unit == nullptr || !unit->block);
  };
  for (size_t index = first; index <= last; ++index) {
    auto [begin, stop] = bounds(index);
    if (hole(index)) continue;
    const uint64_t unit_bytes = unit_length(object.size_bytes, index);
    if (object.needs_load(index) && (begin > 0 || stop < unit_bytes)) {
      attempt.loads.at(attempt.load_count++) = index;
      // What is read has a block for what the unit is now.
      if (attempt.with_clones || stop > unit_bytes) needed += MemoryPool::block_bytes(std::max(stop, unit_bytes));
      continue;
    }
    needed += object.memory_for_piece(index, begin, stop);
  }
  if (attempt.load_count > 0) {
    attempt.memory_needed = needed;
    return Progress::kNeedsLoad;
  }
  if (needed > attempt.memory.bytes()) {
    attempt.memory_needed = needed;
    return Progress::kNeedsMemory;
  }
  for (size_t index = first; index <= last; ++index) {
    auto [begin, stop] = bounds(index);
    if (hole(index)) continue;
    const std::byte* from = zeroing ? nullptr : source.bytes.data() + (index * kUnitBytes + begin - source.offset);
    object.place_piece(index, begin, stop, from, attempt.memory);
  }
  object.size_bytes = new_size;
  object.note_written(source.offset, source.offset + source.length());
  changes_->content_changed(object_pointer);
  if (handle != nullptr && !handle->unflushed) {
    handle->unflushed = true;
    ++object.unflushed_handles;
  }
  return Progress::kDone;
}

// Tries as long as memory can be had at once, or with none but what its blocks have; pieces one after the other. kDone:
// `written` is set.
StoreImpl::Progress StoreImpl::push_write(PendingWrite& pending, bool takes_memory) {
  while (true) {
    const Progress progress = try_write(pending.object, pending.handle, pending.source, pending.attempt);
    if (progress == Progress::kDone) {
      pending.let_go_of_memory();
      pending.attempt.with_clones = false;
      pending.written += pending.source.length();
      if (pending.next_piece(cache_->piece_bytes())) continue;
      return progress;
    }
    if (progress == Progress::kNeedsMemory && takes_memory) {
      pending.attempt.memory = Reservation();  // or its bytes would count twice
      if (pending.attempt.file.wanted) {
        if (cache_->get_file(pending.attempt.file, MemoryFor::kWriter)) continue;
        return progress;
      }
      pending.attempt.memory = cache_->reserve(pending.attempt.memory_needed, MemoryFor::kWriter);
      if (pending.attempt.memory.bytes() > 0) continue;
      return progress;
    }
    pending.attempt.file.grows.reset();  // while it waits its memory file can be spilled
    return progress;
  }
}

// After what it needed was loaded, with what it was given for the rest.
void StoreImpl::continue_write(std::shared_ptr<PendingWrite> pending) {
  if (!pending->has_its_bytes())  // this may be a thread of the volume
    return resumer_.answer_later([this, pending] {
      if (fetch_bytes_of(pending)) continue_write(pending);
    });
  const Progress progress = push_write(*pending, true);
  pending->attempt.with_clones |= progress != Progress::kDone;
  proceed(pending, progress);
}

// Gets the memory for all of a write and for the parts of the body that it needs, and begins to read those; or nothing.
bool StoreImpl::begin_write_loads(const std::shared_ptr<PendingWrite>& pending, MemoryWaiters::Try& attempt) {
  pending->let_go_of_memory();
  WriteAttempt& lacks = pending->attempt;
  const std::span<const size_t> loads(lacks.loads.data(), lacks.load_count);
  read_ahead_->note_demand(pending->object->id);
  bool begun = attempt.may_take || lacks.memory_needed == 0;
  if (begun && lacks.memory_needed > 0) {
    lacks.memory = cache_->reserve(lacks.memory_needed, MemoryFor::kWriter);
    begun = lacks.memory.bytes() > 0;
  }
  auto waiter = std::make_shared<LoadWaiter>();  // never comes to an end if not all of them begin
  for (size_t i = 0; i < loads.size() && begun; ++i)
    begun = loader_->start(pending->object, {loads[i], loads[i] + 1, loads[i] + 1}, MemoryFor::kWriter, waiter, &pending->pins[i], attempt);
  if (!begun) {
    pending->let_go_of_memory();
    attempt.lacks_bytes = lacks.memory_needed + loads.size() * kUnitBytes;
    return false;
  }
  waiter->done = [this, pending](Status status) {
    if (status) return continue_write(pending);
    fail_write(pending, std::move(status).error());
  };
  waiter->finish_one({});
  return true;
}

// True: it goes on, or is answered.
bool StoreImpl::retry_write(const std::shared_ptr<PendingWrite>& pending, MemoryWaiters::Try& attempt) {
  if (!pending->has_its_bytes()) {
    if (!attempt.may_take) return false;  // those of one at a time are read
    if (!fetch_bytes_of(pending)) return true;
  }
  const Progress progress = push_write(*pending, attempt.may_take);
  if (progress == Progress::kNeedsLoad) return begin_write_loads(pending, attempt);
  if (progress == Progress::kNeedsMemory) {
    drop_unused_file(*pending->object);
    attempt.lacks_bytes = pending->attempt.memory_needed;
    return false;
  }
  proceed(pending, progress);
  return true;
}

// False: they do not come back, and it has been answered. Blocks on the volume.
bool StoreImpl::fetch_bytes_of(const std::shared_ptr<PendingWrite>& pending) {
  Status status = pending->fetch_bytes();
  if (status) return true;
  fail_write(pending, std::move(status).error());
  return false;
}

void StoreImpl::fail_write(const std::shared_ptr<PendingWrite>& pending, Error error) {
  pending->let_go_of_memory();
  pending->error = std::move(error);
  {
    const auto lock = pending->object->lock();
    pending->object->note_failed_write(*pending->error, pending->source.offset, pending->end());
  }
  pending->finish();
}

void StoreImpl::wait_to_write(const std::shared_ptr<PendingWrite>& pending, uint64_t lacks_bytes) {
  drop_unused_file(*pending->object);
  pending->let_go_of_memory();
  pending->put_bytes_aside();
  cache_->wait(MemoryFor::kWriter, pending->object->id, lacks_bytes,
                  [this, pending](MemoryWaiters::Try& attempt) { return retry_write(pending, attempt) || give_up_write(*pending); });
}

// Of one that waits for memory: the volume has taken nothing for a while, so none comes back. Its call hears of it.
bool StoreImpl::give_up_write(PendingWrite& pending) {
  auto refused = refusals_.lasting();
  if (!refused) return false;
  {
    const auto lock = pending.object->lock();
    pending.object->note_failed_write(*refused, pending.source.offset, pending.end());
  }
  pending.error = std::move(refused);
  pending.finish();
  return true;
}

void StoreImpl::proceed(const std::shared_ptr<PendingWrite>& pending, Progress progress) {
  if (progress == Progress::kDone) return pending->finish();
  if (progress == Progress::kIsRaw) return opener_.run([this, pending] { continue_in_raw(pending); });
  if (progress == Progress::kNeedsLoad) {
    MemoryWaiters::Try now{.may_take = cache_->may_take(MemoryFor::kWriter)};
    if (!begin_write_loads(pending, now)) wait_to_write(pending, now.lacks_bytes);
    return;
  }
  if (progress == Progress::kNeedsSpace) {
    pending->let_go_of_memory();
    pending->put_bytes_aside();
    const bool can_fit = pending->end() <= space_.limit_bytes();  // else nothing is evicted for it
    if (can_fit && space_waiters_.wait(pending->turn_for_room, [this, pending] {
          if (!fetch_bytes_of(pending)) return;
          proceed(pending, push_write(*pending, cache_->may_take(MemoryFor::kWriter)));
        }))
      return;
    counters_.errors_no_space.fetch_add(1, std::memory_order_relaxed);
    {
      const auto lock = pending->object->lock();
      pending->error = no_space(*pending->object, pending->source.length());
      pending->object->note_failed_write(*pending->error, pending->source.offset, pending->end());
    }
    return pending->finish();
  }
  wait_to_write(pending, pending->attempt.memory_needed);
}

// The body became a raw file while this waited: it begins anew there, with what is left of it.
void StoreImpl::continue_in_raw(const std::shared_ptr<PendingWrite>& pending) {
  pending->let_go_of_memory();
  pending->attempt = WriteAttempt();
  if (!fetch_bytes_of(pending)) return;
  if (pending->handle != nullptr) {
    return write(pending->handle, pending->source.offset, pending->rest(), [pending](Result<size_t> result) mutable {
      if (result) *result += pending->written;
      pending->done(std::move(result));
    });
  }
  const uint64_t from = pending->source.offset;
  allocate_in(pending->object, AllocateMode::kPunchHole, from, pending->end() - from, [pending](Status status) mutable {
    if (!status) return pending->done(std::unexpected(std::move(status).error()));
    pending->done(pending->written);
  });
}

void StoreImpl::write(Handle* handle, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done) {
  const ObjectPtr& object = handle->object;
  counters_.write_requests.fetch_add(1, std::memory_order_relaxed);
  counters_.write_received_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
  if (bytes.empty()) return done(size_t{0});
  if (Status may = check_may_change(*object); !may) return done(std::unexpected(std::move(may).error()));
  if (offset > kMaxFileBytes || bytes.size() > kMaxFileBytes - offset)
    return done(fail(Code::kTooBig, fmt::format("object {}: offset {} is past the largest file of {}", object->id.value,
                                                offset, format_size(kMaxFileBytes))));
  FilePtr raw;
  {
    const auto lock = object->lock();
    note_change(object, handle);
    note_written(handle, offset, bytes.size());
    raw = object->raw;
  }
  if (raw)
    return write_raw_in_turn(handle, std::move(raw), offset, bytes, [handle, done = std::move(done)](Result<size_t> result) mutable {
      if (!result) handle->note_failed_write();
      done(std::move(result));
    });
  if (offset + bytes.size() > kMaxSealedBytes) return done(std::unexpected(too_big_to_seal(*object, offset + bytes.size())));

  auto pending = std::make_shared<PendingWrite>();
  pending->object = object;
  pending->handle = handle;
  pending->bytes_left = bytes;
  pending->source.offset = offset;
  pending->next_piece(cache_->piece_bytes());
  pending->done = std::move(done);
  const Progress progress = push_write(*pending, cache_->may_take(MemoryFor::kWriter));
  if (progress == Progress::kDone) return pending->finish();
  if (progress == Progress::kIsRaw) return continue_in_raw(pending);
  if (Status status = pending->own_bytes(*waiting_bytes_); !status) return fail_write(pending, std::move(status).error());
  proceed(pending, progress);
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
