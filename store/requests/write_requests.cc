// Writes of bodies, and zeroing. A request is tried under the object's mutex; if it lacks memory, bytes of the volume, or space, it
// releases every lock, gets that, and is tried again. No request waits on the caller's thread.
#include "store/requests/write_requests.h"

#include <algorithm>

#include <fmt/format.h>

#include "store/requests/pending_write.h"

namespace kvcachefs {

Error WriteRequests::no_space(const Object& object, uint64_t bytes) const {
  if (auto other = parts_.refusals.gone()) return *std::move(other);
  return {Code::kNoSpace, 0,
          fmt::format("object {}: {} do not fit the capacity of {}", object.id.value, format_size(bytes),
                      format_size(parts_.space.limit_bytes()))};
}

Error too_big_to_seal(const Object& object, uint64_t size_bytes) {
  return {Code::kTooBig, 0,
          fmt::format("object {}: {} is past the {} that a file with checksums can have: size it as an empty file "
                      "(ftruncate), above the option raw_above, and it has none",
                      object.id.value, format_size(size_bytes), format_size(kMaxSealedBytes))};
}

WriteRequests::Progress WriteRequests::try_write(const ObjectPtr& object_pointer, Handle* handle, WriteSource source,
                                                 WriteAttempt& attempt) {
  Object& object = *object_pointer;
  const auto lock = object.lock();
  if (object.raw) return Progress::kIsRaw;  // it became raw since the call
  const bool zeroing = source.bytes.empty();
  uint64_t end = source.offset + source.length();
  if (zeroing) end = std::min(end, object.size_bytes);
  if (end <= source.offset) return Progress::kDone;
  const uint64_t new_size = std::max(object.size_bytes, end);
  if (!parts_.changes.reserve_space(object, new_size)) return Progress::kNeedsSpace;

  const size_t first = unit_of(source.offset), last = unit_of(end - 1);
  if (object.clones_a_block(first, last, end)) object.memory_file.reset();
  if (!zeroing && object.lacks_file_memory(first, last + 1, attempt.file)) return Progress::kNeedsMemory;
  uint64_t needed = 0;
  attempt.load_count = 0;
  auto bounds = [&](size_t index) {
    const uint64_t unit_start = index * kUnitBytes;
    return std::pair{std::max(source.offset, unit_start) - unit_start, std::min(end - unit_start, kUnitBytes)};
  };
  auto hole = [&](size_t index) {  // zeroing a unit that is zeros already
    const Unit* unit = object.unit_or_null(index);
    return zeroing && !object.needs_load(index) && (unit == nullptr || !unit->block);
  };
  for (size_t index = first; index <= last; ++index) {
    auto [begin, stop] = bounds(index);
    if (hole(index)) continue;
    const uint64_t unit_bytes = unit_length(object.size_bytes, index);
    if (object.needs_load(index) && (begin > 0 || stop < unit_bytes)) {
      attempt.loads.at(attempt.load_count++) = index;
      // The unit is read into a block of its present size.
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
  parts_.changes.content_changed(object_pointer);
  if (handle != nullptr) handle->begin_writing();
  return Progress::kDone;
}

// Tries the pieces one after the other as long as memory can be had at once (`takes_memory`), or with only the memory that their
// blocks have. kDone: `written` is set.
WriteRequests::Progress WriteRequests::push_write(PendingWrite& pending, bool takes_memory) {
  while (true) {
    const Progress progress = try_write(pending.object, pending.handle, pending.source, pending.attempt);
    if (progress == Progress::kDone) {
      pending.let_go_of_memory();
      pending.attempt.with_clones = false;
      pending.written += pending.source.length();
      if (pending.next_piece(parts_.cache.piece_bytes())) continue;
      return progress;
    }
    if (progress == Progress::kNeedsMemory && takes_memory) {
      pending.attempt.memory = Reservation();  // released first, or its bytes would count twice
      if (pending.attempt.file.wanted) {
        if (parts_.cache.get_file(pending.attempt.file, MemoryFor::kWriter)) continue;
        return progress;
      }
      pending.attempt.memory = parts_.cache.reserve(pending.attempt.memory_needed, MemoryFor::kWriter);
      if (pending.attempt.memory.bytes() > 0) continue;
      return progress;
    }
    pending.attempt.file.grows.reset();  // the memory file can be spilled while the write waits
    return progress;
  }
}

// Goes on after the units that it needed were loaded, with the memory that it was given for the rest.
void WriteRequests::continue_write(std::shared_ptr<PendingWrite> pending) {
  if (!pending->has_its_bytes())  // not here: this may be a thread of the volume
    return parts_.resumer.answer_later([this, pending] {
      if (fetch_bytes_of(pending)) continue_write(pending);
    });
  const Progress progress = push_write(*pending, true);
  pending->attempt.with_clones |= progress != Progress::kDone;
  proceed(pending, progress);
}

// Gets the memory for a whole write and for the units that it needs, and begins to read those. False: got nothing and began nothing.
bool WriteRequests::begin_write_loads(const std::shared_ptr<PendingWrite>& pending, MemoryWaiters::Try& attempt) {
  pending->let_go_of_memory();
  WriteAttempt& lacks = pending->attempt;
  const std::span<const size_t> loads(lacks.loads.data(), lacks.load_count);
  parts_.read_ahead.note_demand(pending->object->id);
  bool begun = attempt.may_take || lacks.memory_needed == 0;
  if (begun && lacks.memory_needed > 0) {
    lacks.memory = parts_.cache.reserve(lacks.memory_needed, MemoryFor::kWriter);
    begun = lacks.memory.bytes() > 0;
  }
  auto waiter = std::make_shared<LoadWaiter>();  // never finishes if not all loads begin
  for (size_t i = 0; i < loads.size() && begun; ++i)
    begun = parts_.loader.start(pending->object, {loads[i], loads[i] + 1, loads[i] + 1}, MemoryFor::kWriter, waiter, &pending->pins[i], attempt);
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

// True: the write goes on, or is answered.
bool WriteRequests::retry_write(const std::shared_ptr<PendingWrite>& pending, MemoryWaiters::Try& attempt) {
  if (!pending->has_its_bytes()) {
    if (!attempt.may_take) return false;  // the parked bytes of one write at a time are read
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

// False: the bytes could not be read back, and the write has been answered. Blocks on the volume.
bool WriteRequests::fetch_bytes_of(const std::shared_ptr<PendingWrite>& pending) {
  Status status = pending->fetch_bytes();
  if (status) return true;
  fail_write(pending, std::move(status).error());
  return false;
}

void WriteRequests::fail_write(const std::shared_ptr<PendingWrite>& pending, Error error) {
  pending->let_go_of_memory();
  pending->error = std::move(error);
  {
    const auto lock = pending->object->lock();
    pending->object->note_failed_write(*pending->error, pending->source.offset, pending->end());
  }
  pending->finish();
}

void WriteRequests::wait_to_write(const std::shared_ptr<PendingWrite>& pending, uint64_t lacks_bytes) {
  drop_unused_file(*pending->object);
  pending->let_go_of_memory();
  pending->put_bytes_aside();
  parts_.cache.wait(MemoryFor::kWriter, pending->object->id, lacks_bytes,
                    [this, pending](MemoryWaiters::Try& attempt) { return retry_write(pending, attempt); },
                    [this, pending](Error why) { fail_write(pending, std::move(why)); });
}

void WriteRequests::proceed(const std::shared_ptr<PendingWrite>& pending, Progress progress) {
  if (progress == Progress::kDone) return pending->finish();
  if (progress == Progress::kIsRaw) return parts_.opener.run([this, pending] { continue_in_raw(pending); });
  if (progress == Progress::kNeedsLoad) {
    MemoryWaiters::Try now{.may_take = parts_.cache.may_take(MemoryFor::kWriter)};
    if (!begin_write_loads(pending, now)) wait_to_write(pending, now.lacks_bytes);
    return;
  }
  if (progress == Progress::kNeedsSpace) {
    pending->let_go_of_memory();
    pending->put_bytes_aside();
    const bool can_fit = pending->end() <= parts_.space.limit_bytes();  // if not, nothing is evicted for it
    if (can_fit && parts_.space_waiters.wait(pending->turn_for_room, [this, pending] {
          if (!fetch_bytes_of(pending)) return;
          proceed(pending, push_write(*pending, parts_.cache.may_take(MemoryFor::kWriter)));
        }))
      return;
    parts_.counters.errors_no_space.fetch_add(1, std::memory_order_relaxed);
    {
      const auto lock = pending->object->lock();
      pending->error = no_space(*pending->object, pending->source.length());
      pending->object->note_failed_write(*pending->error, pending->source.offset, pending->end());
    }
    return pending->finish();
  }
  wait_to_write(pending, pending->attempt.memory_needed);
}

// The body became a raw file while the write waited: the rest of the write begins anew there.
void WriteRequests::continue_in_raw(const std::shared_ptr<PendingWrite>& pending) {
  pending->let_go_of_memory();
  pending->attempt = WriteAttempt();
  if (!fetch_bytes_of(pending)) return;
  if (pending->handle != nullptr) {
    auto done = [pending](Result<size_t> result) mutable {
      if (result) *result += pending->written;
      pending->done(std::move(result));
    };
    return write(pending->handle, pending->source.offset, pending->rest(), std::move(done), pending->of);
  }
  const uint64_t from = pending->source.offset;
  allocate_in(pending->object, AllocateMode::kPunchHole, from, pending->end() - from, [pending](Status status) mutable {
    if (!status) return pending->done(std::unexpected(std::move(status).error()));
    pending->done(pending->written);
  });
}

void WriteRequests::write(Handle* handle, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done, WriteOf of) {
  const ObjectPtr& object = handle->object;
  parts_.counters.write_requests.fetch_add(1, std::memory_order_relaxed);
  parts_.counters.write_received_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
  if (bytes.empty()) return done(size_t{0});
  if (Status may = parts_.check_may_change(*object); !may) return done(std::unexpected(std::move(may).error()));
  if (offset > kMaxFileBytes || bytes.size() > kMaxFileBytes - offset)
    return done(fail(Code::kTooBig, fmt::format("object {}: offset {} is past the largest file of {}", object->id.value,
                                                offset, format_size(kMaxFileBytes))));
  FilePtr raw;
  {
    const auto lock = object->lock();
    parts_.in_place.note_change(object, handle);
    parts_.in_place.note_written(handle, offset, bytes.size());
    raw = object->raw;
  }
  if (raw) {
    auto finish = [handle, offset, end = offset + bytes.size(), of, done = std::move(done)](Result<size_t> result) mutable {
      if (!result) {
        handle->note_failed_write();
        // Bytes that the kernel had taken are lost. A call that was refused left the file as it was.
        const auto lock = handle->object->lock();
        if (of == WriteOf::kPages && handle->object->raw) handle->object->note_failed_write(result.error(), offset, end);
      }
      done(std::move(result));
    };
    return write_raw_in_turn(handle, std::move(raw), offset, bytes, std::move(finish));
  }
  if (offset + bytes.size() > kMaxSealedBytes) return done(std::unexpected(too_big_to_seal(*object, offset + bytes.size())));

  auto pending = std::make_shared<PendingWrite>();
  pending->object = object;
  pending->handle = handle;
  pending->of = of;
  pending->bytes_left = bytes;
  pending->source.offset = offset;
  pending->next_piece(parts_.cache.piece_bytes());
  pending->done = std::move(done);
  const Progress progress = push_write(*pending, parts_.cache.may_take(MemoryFor::kWriter));
  if (progress == Progress::kDone) return pending->finish();
  if (progress == Progress::kIsRaw) return continue_in_raw(pending);
  if (Status status = pending->own_bytes(parts_.waiting_bytes); !status) return fail_write(pending, std::move(status).error());
  proceed(pending, progress);
}

}  // namespace kvcachefs
