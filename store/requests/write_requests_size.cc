// Changes the size of a body and its holes: truncate, allocate, punch and zero.
#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "store/requests/pending_write.h"
#include "store/requests/write_requests.h"

namespace kvcachefs {

// If a write with O_DIRECT, or an asynchronous one, that would have made the file longer fails, the kernel truncates the file to the
// size that it knows, by the same handle and before the caller learns of the failure. Nothing marks that truncation, nor such a
// write. So the first truncation by a handle after a failed write through it counts as the kernel's. A caller that empties
// the file to write something else does so by path, or opens it with O_TRUNC.
Resize WriteRequests::kind_of_truncation(Handle* handle) {
  if (handle == nullptr) return Resize::kExactly;
  const auto lock = handle->object->lock();
  return std::exchange(handle->kernel_cuts, false) ? Resize::kAfterFailedWrite : Resize::kExactly;
}

void WriteRequests::resize(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done) {
  if (size_bytes > kMaxFileBytes)
    return done(fail(Code::kTooBig, fmt::format("object {}: {} is past the largest file of {}", object->id.value,
                                                format_size(size_bytes), format_size(kMaxFileBytes))));
  FilePtr raw;
  bool become_raw = false, grows = false;
  {
    const auto lock = object->lock();
    raw = object->raw;
    become_raw = !raw && size_bytes > parts_.options.raw_above_bytes() && object->size_bytes == 0;
    grows = size_bytes > object->size_bytes;
  }
  // Nothing is evicted for a size that cannot fit.
  if ((raw || grows) && size_bytes > parts_.space.limit_bytes()) return done(std::unexpected(no_space(*object, size_bytes)));
  if (raw || become_raw) {
    if (!become_raw) return resize_raw(std::move(object), std::move(raw), size_bytes, how, std::move(done));
    Status made = make_raw(object, size_bytes);
    if (made || made.error().code != Code::kBusy) return done(std::move(made));
    return resize(std::move(object), size_bytes, how, std::move(done));  // again: it is not empty any more, or already raw
  }
  if (size_bytes > kMaxSealedBytes) return done(std::unexpected(too_big_to_seal(*object, size_bytes)));
  resize_body(std::move(object), size_bytes, how, std::move(done));
}

// If the unit that the new end cuts has other holders, it is cloned. If it lies in the spill file only, it is read first: its rest is written
// there again, and must not be read from there meanwhile.
void WriteRequests::resize_body(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done) {
  bool cuts = false, cuts_spilled = false;
  {
    const auto lock = object->lock();
    cuts = how != Resize::kAtLeast && object->is_cut_in_a_unit(size_bytes);
    cuts_spilled = cuts && object->is_cut_in_the_spill_file(size_bytes);
  }
  if (cuts_spilled) return load_and_resize(std::move(object), size_bytes, how, std::move(done));
  if (!cuts) return resize_with(std::move(object), size_bytes, how, {}, std::move(done));
  const ObjectId id = object->id;
  const auto shared_done = std::make_shared<StatusCompletion>(std::move(done));
  auto retry = [this, object = std::move(object), size_bytes, how, shared_done](MemoryWaiters::Try& attempt) mutable {
    attempt.lacks_bytes = kUnitBytes;
    if (!attempt.may_take) return false;
    Reservation memory = parts_.cache.reserve(kUnitBytes, MemoryFor::kWriter);
    if (memory.bytes() == 0) return false;
    resize_with(std::move(object), size_bytes, how, std::move(memory), std::move(*shared_done));
    return true;
  };
  MemoryWaiters::Try now{.may_take = parts_.cache.may_take(MemoryFor::kWriter)};
  if (!retry(now)) parts_.cache.wait(MemoryFor::kWriter, id, kUnitBytes, std::move(retry), [shared_done](Error why) { (*shared_done)(std::unexpected(std::move(why))); });
}

// Holds the unit that was read for one try only: it may be evicted before the resize has the memory or room that it waits for; then it is read again.
void WriteRequests::load_and_resize(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done) {
  const size_t unit = unit_of(size_bytes);
  auto pin = std::make_shared<WantedUnits>();
  parts_.read_ahead.note_demand(object->id);
  parts_.loader.load(object, {unit, unit + 1, unit + 1}, MemoryFor::kWriter, pin,
                     [this, object, size_bytes, how, pin, done = std::move(done)](Status status) mutable {
                       if (!status) return done(std::move(status));
                       resize(std::move(object), size_bytes, how, std::move(done));
                       pin->release();
                     });
}

void WriteRequests::resize_with(ObjectPtr object, uint64_t size_bytes, Resize how, Reservation memory, StatusCompletion done) {
  const uint64_t memory_bytes = memory.bytes();
  parts_.space_waiters.with_room(
      [this, object, size_bytes, how, memory_bytes, memory = std::move(memory)]() mutable {
        if (memory.bytes() < memory_bytes) memory = parts_.cache.reserve(memory_bytes, MemoryFor::kWriter);  // once more
        Status resized = resize_now(object, size_bytes, how, memory);
        memory = Reservation();  // a call that waits for room holds no memory: others may need it to make room
        return resized;
      },
      [this, again = object, size_bytes, how, done = std::move(done)](Status status) mutable {
        if (status || status.error().code != Code::kBusy) return done(std::move(status));
        resize(std::move(again), size_bytes, how, std::move(done));
      });
}

Status WriteRequests::resize_now(const ObjectPtr& object, uint64_t size_bytes, Resize how, Reservation& memory) {
  const auto lock = object->lock();
  const bool becomes_raw = object->size_bytes == 0 && size_bytes > parts_.options.raw_above_bytes();
  if (object->raw || becomes_raw) return fail(Code::kBusy, "it became raw while this waited, or is to now: once more");
  if (how == Resize::kAtLeast) size_bytes = std::max(size_bytes, object->size_bytes);
  if (size_bytes == object->size_bytes) {
    parts_.changes.note_modified(object);
    return {};
  }
  const bool cuts = object->is_cut_in_a_unit(size_bytes);
  if (cuts && memory.bytes() < kUnitBytes)
    return fail(Code::kBusy, "it grew while it waited, and is cut now: once more, with memory");
  if (cuts && object->is_cut_in_the_spill_file(size_bytes)) return fail(Code::kBusy, "it was spilled while this waited: once more");
  // Also for a smaller size: the whole body is written anew.
  if (!parts_.changes.reserve_space(*object, size_bytes)) return std::unexpected(no_space(*object, size_bytes));
  if (size_bytes < object->size_bytes) {
    if (object->units.size() > div_ceil(size_bytes, kUnitBytes)) object->units.resize(div_ceil(size_bytes, kUnitBytes));
    if (cuts) object->zero_tail(size_bytes, memory);
    object->base_valid_bytes = std::min(object->base_valid_bytes, size_bytes);
    object->shrunk_to_bytes = std::min(object->shrunk_to_bytes, size_bytes);
    object->cut_allocated(size_bytes);
  }
  object->note_cut(size_bytes, how);
  if (size_bytes == 0) {
    object->written_anew = true;
    object->memory_file.reset();  // otherwise it would be held without a block in it
  }
  if (object->size_bytes == 0 && object->units.empty() && !object->memory_file) parts_.files.expect_size(*object, size_bytes);
  object->size_bytes = size_bytes;
  parts_.changes.content_changed(object);
  return {};
}

void WriteRequests::allocate(Handle* handle, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) {
  if (Status may = parts_.check_may_change(*handle->object); !may) return done(std::move(may));
  {
    const auto lock = handle->object->lock();
    parts_.in_place.note_change(handle->object, handle);
  }
  allocate_in(handle->object, mode, offset, length, std::move(done));
}

// Begins anew if the body became raw, or ceased to be raw, while the call waited.
void WriteRequests::allocate_in(ObjectPtr object, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) {
  const uint64_t end = offset + length;
  if (length == 0 || offset > kMaxFileBytes || length > kMaxFileBytes || end > kMaxFileBytes)
    return done(fail(length == 0 ? Code::kInvalid : Code::kTooBig,
                     fmt::format("object {}: fallocate of {} bytes at {}", object->id.value, length, offset)));
  FilePtr raw;
  uint64_t size = 0;
  {
    const auto lock = object->lock();
    raw = object->raw;
    size = object->size_bytes;
  }
  const bool extends = (mode == AllocateMode::kExtend || mode == AllocateMode::kZeroRange) && end > size;
  if (extends && !raw) {
    // Sizes the body first (that decides whether it becomes raw), then calls itself for the rest that the mode asks for.
    return resize(object, end, Resize::kAtLeast, [this, object, mode, offset, length, done = std::move(done)](Status status) mutable {
      if (!status) return done(std::move(status));
      allocate_in(std::move(object), mode, offset, length, std::move(done));
    });
  }
  if (raw) return allocate_raw(object, std::move(raw), size, mode, offset, length, std::move(done));
  if (mode != AllocateMode::kPunchHole && end > parts_.space.limit_bytes()) return done(std::unexpected(no_space(*object, end)));
  if (mode != AllocateMode::kPunchHole) {
    auto reserve = [this, object, offset, end] { return take_room_for(object, offset, end); };
    if (mode == AllocateMode::kZeroRange || mode == AllocateMode::kZeroRangeKeepSize)  // zeros the range afterwards
      done = [this, object, offset, length, done = std::move(done)](Status status) mutable {
        if (!status) return done(std::move(status));
        allocate_in(std::move(object), AllocateMode::kPunchHole, offset, length, std::move(done));
      };
    auto go_on = [this, object, mode, offset, length, done = std::move(done)](Status status) mutable {
      if (status || status.error().code != Code::kBusy) return done(std::move(status));
      allocate_in(std::move(object), mode, offset, length, std::move(done));
    };
    return parts_.space_waiters.with_room(std::move(reserve), std::move(go_on));
  }
  const uint64_t zeroed = std::min(end, std::max(size, offset)) - offset;
  if (zeroed == 0) {  // the range lies behind the end: that counts as a change too
    const auto lock = object->lock();
    parts_.changes.note_modified(object);
  }
  zero_range(object, offset, zeroed, std::move(done));
}

// kBusy: the body became raw.
Status WriteRequests::take_room_for(const ObjectPtr& object, uint64_t offset, uint64_t end) {
  const auto lock = object->lock();
  if (object->raw) return fail(Code::kBusy, "it became raw while this waited");
  const uint64_t bytes = std::max(end, object->size_bytes);
  const auto before = std::pair(object->allocated_from, object->allocated_to);
  object->note_allocated(align_down(offset, kBlockBytes), align_up(end, kBlockBytes));
  // A dirty body takes the room along with its next seal; a clean one has its own room already, and this is for its next version.
  const bool taken = object->content_dirty() ? parts_.changes.reserve_space(*object, bytes) : parts_.changes.keep_room(*object, /*may_wait=*/true);
  if (!taken) {
    std::tie(object->allocated_from, object->allocated_to) = before;
    return std::unexpected(no_space(*object, bytes));
  }
  parts_.changes.note_modified(object);
  return {};
}

void WriteRequests::zero_range(ObjectPtr object, uint64_t offset, uint64_t length, StatusCompletion done) {
  auto pending = std::make_shared<PendingWrite>();
  pending->object = std::move(object);
  pending->source = {offset, {}, 0};
  pending->zeros_left = length;
  if (!pending->next_piece(parts_.cache.piece_bytes())) return done({});
  pending->done = [done = std::move(done)](Result<size_t> result) mutable {
    if (!result) return done(std::unexpected(std::move(result).error()));
    done({});
  };
  proceed(pending, push_write(*pending, parts_.cache.may_take(MemoryFor::kWriter)));
}

}  // namespace kvcachefs
