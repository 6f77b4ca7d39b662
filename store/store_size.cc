// The size of a body and its holes: truncate, allocate, punch and zero, and where data and holes lie.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "store/store_impl.h"
#include "store/store_io.h"

namespace kvcachefs {

void StoreImpl::zero_tail(Object& object, uint64_t from, Reservation& memory) {
  const size_t index = unit_of(from);
  Unit* unit = object.unit_or_null(index);
  if (unit == nullptr) return;
  const uint64_t in_unit = from % kUnitBytes;
  unit->spill_valid_bytes = std::min<uint32_t>(unit->spill_valid_bytes, static_cast<uint32_t>(in_unit));
  if (!unit->block || in_unit >= unit->block->capacity_bytes()) return;
  const uint64_t capacity = unit->block->capacity_bytes();
  if (clones_a_block(object, index, index, index * kUnitBytes + capacity)) object.memory_file.reset();
  place_piece(object, index, in_unit, capacity, nullptr, memory);
}

void StoreImpl::resize(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done) {
  if (size_bytes > kMaxFileBytes)
    return done(fail(Code::kTooBig, fmt::format("object {}: {} is past the largest file of {}", object->id.value,
                                                format_size(size_bytes), format_size(kMaxFileBytes))));
  FilePtr raw;
  bool become_raw = false;
  {
    std::lock_guard lock(object->mutex);
    raw = object->raw;
    become_raw = !raw && size_bytes > raw_above_bytes_.load(std::memory_order_relaxed) && object->size_bytes == 0;
  }
  if (raw || become_raw) {
    if (size_bytes > space_.limit_bytes())
      return done(fail(Code::kNoSpace, fmt::format("object {}: {} is more than the capacity of {}", object->id.value,
                                                   format_size(size_bytes), format_size(space_.limit_bytes()))));
    if (!become_raw) return resize_raw(std::move(object), std::move(raw), size_bytes, how, std::move(done));
    Status made = make_raw(object, size_bytes);
    if (made || made.error().code != Code::kBusy) return done(std::move(made));
    return resize(std::move(object), size_bytes, how, std::move(done));  // it is not empty any more, or raw already
  }
  if (size_bytes > kMaxSealedBytes) return done(std::unexpected(too_big_to_seal(*object, size_bytes)));
  resize_body(std::move(object), size_bytes, how, std::move(done));
}

// The unit that the new end cuts may be held by others, and is cloned then.
void StoreImpl::resize_body(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done) {
  bool cuts = false;
  {
    std::lock_guard lock(object->mutex);
    cuts = how == Resize::kExactly && object->is_cut_in_a_unit(size_bytes);
  }
  if (!cuts) return resize_with(std::move(object), size_bytes, how, {}, std::move(done));
  const ObjectId id = object->id;
  auto retry = [this, object = std::move(object), size_bytes, how, done = std::move(done)](MemoryWaiters::Try& attempt) mutable {
    attempt.lacks_bytes = kUnitBytes;
    if (!attempt.may_take) return false;
    Reservation memory = reserve_memory(kUnitBytes, MemoryFor::kWriter);
    if (memory.bytes() == 0) return false;
    resize_with(std::move(object), size_bytes, how, std::move(memory), std::move(done));
    return true;
  };
  MemoryWaiters::Try now{.may_take = may_take_memory(MemoryFor::kWriter)};
  if (!retry(now)) wait_for_memory(MemoryFor::kWriter, id, kUnitBytes, std::move(retry));
}

void StoreImpl::resize_with(ObjectPtr object, uint64_t size_bytes, Resize how, Reservation memory, StatusCompletion done) {
  with_room([this, object, size_bytes, how,
             memory = std::move(memory)]() mutable { return resize_now(object, size_bytes, how, memory); },
            [this, again = object, size_bytes, how, done = std::move(done)](Status status) mutable {
              if (status || status.error().code != Code::kBusy) return done(std::move(status));
              resize(std::move(again), size_bytes, how, std::move(done));
            });
}

Status StoreImpl::resize_now(const ObjectPtr& object, uint64_t size_bytes, Resize how, Reservation& memory) {
  std::lock_guard lock(object->mutex);
  const bool becomes_raw = object->size_bytes == 0 && size_bytes > raw_above_bytes_.load(std::memory_order_relaxed);
  if (object->raw || becomes_raw) return fail(Code::kBusy, "it became raw while this waited, or is to now: once more");
  if (how == Resize::kAtLeast) size_bytes = std::max(size_bytes, object->size_bytes);
  if (size_bytes == object->size_bytes && !object->write_error) {
    note_modified(object);
    return {};
  }
  const bool cuts = object->is_cut_in_a_unit(size_bytes);
  if (cuts && memory.bytes() < kUnitBytes)
    return fail(Code::kBusy, "it grew while it waited, and is cut now: once more, with memory");
  // Also for less than before: the body is written anew as a whole.
  if (!reserve_space(*object, size_bytes)) return std::unexpected(no_space(*object, size_bytes));
  if (size_bytes < object->size_bytes) {
    if (object->units.size() > div_ceil(size_bytes, kUnitBytes)) object->units.resize(div_ceil(size_bytes, kUnitBytes));
    if (cuts) zero_tail(*object, size_bytes, memory);
    object->base_valid_bytes = std::min(object->base_valid_bytes, size_bytes);
    object->shrunk_to_bytes = std::min(object->shrunk_to_bytes, size_bytes);
  }
  if (size_bytes == 0) {
    object->written_anew = true;
    object->write_error.reset();
    object->memory_file.reset();  // else it would be held with nothing in it
  }
  if (object->size_bytes == 0 && object->units.empty() && !object->memory_file) expect_size(*object, size_bytes);
  object->size_bytes = size_bytes;
  content_changed(object);
  return {};
}

void StoreImpl::allocate(Handle* handle, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) {
  {
    std::lock_guard lock(handle->object->mutex);
    note_change(handle->object, handle);
  }
  allocate_in(handle->object, mode, offset, length, std::move(done));
}

// Begins anew where the body became raw, or ceased to be, while it waited.
void StoreImpl::allocate_in(ObjectPtr object, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) {
  const uint64_t end = offset + length;
  if (length == 0 || offset > kMaxFileBytes || length > kMaxFileBytes || end > kMaxFileBytes)
    return done(fail(length == 0 ? Code::kInvalid : Code::kTooBig,
                     fmt::format("object {}: fallocate of {} bytes at {}", object->id.value, length, offset)));
  FilePtr raw;
  uint64_t size = 0;
  {
    std::lock_guard lock(object->mutex);
    raw = object->raw;
    size = object->size_bytes;
  }
  const bool extends = (mode == AllocateMode::kExtend || mode == AllocateMode::kZeroRange) && end > size;
  if (extends && !raw) {
    // Sized first (that decides whether the body becomes raw), then this call again for what the mode adds.
    return resize(object, end, Resize::kAtLeast, [this, object, mode, offset, length, done = std::move(done)](Status status) mutable {
      if (!status) return done(std::move(status));
      allocate_in(std::move(object), mode, offset, length, std::move(done));
    });
  }
  if (raw) return allocate_raw(object, std::move(raw), size, mode, offset, length, std::move(done));
  if (mode == AllocateMode::kExtend || mode == AllocateMode::kKeepSize) {
    auto reserve = [this, object, end]() -> Status {
      std::lock_guard lock(object->mutex);
      if (object->raw) return fail(Code::kBusy, "it became raw while this waited");
      const uint64_t bytes = std::max(end, object->size_bytes);
      if (!reserve_space(*object, bytes)) return std::unexpected(no_space(*object, bytes));
      // Nothing to write: the promise is kept by the space already used.
      if (!object->content_dirty()) space_.release(std::exchange(object->reserved_bytes, 0));
      note_modified(object);
      return {};
    };
    return with_room(std::move(reserve), [this, object, mode, offset, length, done = std::move(done)](Status status) mutable {
      if (status || status.error().code != Code::kBusy) return done(std::move(status));
      allocate_in(std::move(object), mode, offset, length, std::move(done));
    });
  }
  const uint64_t zeroed = std::min(end, std::max(size, offset)) - offset;
  if (zeroed == 0) {  // behind the end: a change all the same
    std::lock_guard lock(object->mutex);
    note_modified(object);
  }
  zero_range(object, offset, zeroed, std::move(done));
}

void StoreImpl::zero_range(ObjectPtr object, uint64_t offset, uint64_t length, StatusCompletion done) {
  auto pending = std::make_shared<PendingWrite>();
  pending->object = std::move(object);
  pending->source = {offset, {}, 0};
  pending->zeros_left = length;
  if (!pending->next_piece(piece_bytes())) return done({});
  pending->done = [done = std::move(done)](Result<size_t> result) mutable {
    if (!result) return done(std::unexpected(std::move(result).error()));
    done({});
  };
  proceed(pending, push_write(*pending, may_take_memory(MemoryFor::kWriter)));
}

namespace {
// Where the first unit with, or without, bytes begins, at `offset` or behind it. object.mutex held.
std::optional<uint64_t> find_unit(Object& object, uint64_t offset, bool with_bytes) {
  for (uint64_t at = offset; at < object.size_bytes; at = align_down(at, kUnitBytes) + kUnitBytes) {
    const Unit* unit = object.unit_or_null(unit_of(at));
    const bool has_bytes = (unit != nullptr && unit->block) || object.needs_load(unit_of(at));
    if (has_bytes == with_bytes) return at;
  }
  return std::nullopt;
}
}  // namespace

Result<uint64_t> StoreImpl::seek_data(Handle* handle, uint64_t offset) {
  Object& object = *handle->object;
  FilePtr raw;
  {
    std::lock_guard lock(object.mutex);
    if (offset < object.size_bytes) raw = object.raw;
    if (!raw) {
      if (auto found = find_unit(object, offset, /*with_bytes=*/true)) return *found;
      return fail(Code::kNoData, fmt::format("object {}: no data past {}", object.id.value, offset));
    }
  }
  return raw->next_data(offset);
}

Result<uint64_t> StoreImpl::seek_hole(Handle* handle, uint64_t offset) {
  Object& object = *handle->object;
  FilePtr raw;
  {
    std::lock_guard lock(object.mutex);
    if (offset >= object.size_bytes) return fail(Code::kNoData, fmt::format("object {}: nothing past {}", object.id.value, offset));
    raw = object.raw;
    if (!raw) return find_unit(object, offset, /*with_bytes=*/false).value_or(object.size_bytes);
  }
  return raw->next_hole(offset);
}

}  // namespace kvcachefs
