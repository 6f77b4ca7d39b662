// Raw bodies: files 1:1 with a backing file, without checksums. Makes a file raw, and serves its requests, which go to the
// volume at once.
#include <algorithm>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/requests/write_requests.h"

namespace kvcachefs {

// Makes a file, sized far beyond a chunk, 1:1 with a backing file. kBusy: another request came first, and the file is not empty
// any more, or already raw. Blocks to make the backing file. Caller holds no lock.
Status WriteRequests::make_raw(const ObjectPtr& object, uint64_t size_bytes) {
  KVC_ASSIGN(Extents::Made made, parts_.extents.make(PlaceKind::kRaw));
  Status sized = made.file->truncate(size_bytes);
  const auto lock = object->lock();
  if (!sized || object->raw || object->size_bytes > 0) {  // it failed, or another request wrote or sized the file
    parts_.discards.remove_later(made.id, PlaceKind::kRaw);
    if (sized) return fail(Code::kBusy, fmt::format("object {} changed while it was sized", object->id.value));
    return sized;
  }
  object->raw = made.file;
  object->units.clear();
  object->memory_file.reset();
  object->expected_bytes = 0;
  object->cut_allocated(0);  // allocated blocks now belong to the backing file
  parts_.changes.give_room_up(*object);
  object->base_valid_bytes = 0;
  object->base.place = {PlaceKind::kRaw, made.id, 0, 0};
  object->raw_unjournaled = true;
  object->base.checksums.clear();
  object->size_bytes = size_bytes;
  parts_.space.release(std::exchange(object->reserved_bytes, 0));
  parts_.changes.content_changed(object);
  return {};
}

// Blocks to truncate the backing file. Begins anew if the body ceased to be raw meanwhile. Caller holds no lock.
void WriteRequests::resize_raw(ObjectPtr object, FilePtr raw, uint64_t size_bytes, Resize how, StatusCompletion done) {
  // If the body only grows, the backing file need not change: bytes that it lacks read as zeros.
  if (how != Resize::kAtLeast)
    if (Status status = parts_.raw_space.set_size(*raw, size_bytes); !status) return done(std::move(status));
  ExtentId extent;
  if (raw_extent(*object, raw, extent)) parts_.raw_space.measure(extent, *raw);  // so that blocks that were cut off count as free at once
  parts_.space.hope();
  {
    auto lock = object->lock();
    if (object->raw != raw) {
      lock.unlock();
      return resize(std::move(object), size_bytes, how, std::move(done));
    }
    if (how == Resize::kAtLeast) size_bytes = std::max(size_bytes, object->size_bytes);
    object->note_cut(size_bytes, how);
    object->size_bytes = size_bytes;
    parts_.changes.content_changed(object);  // the size is in the record
    parts_.extents.note_unsynced(object->base.place.extent, PlaceKind::kRaw, raw);
  }
  done({});
}

// `size` is the present size of the file.
void WriteRequests::allocate_raw(ObjectPtr object, FilePtr raw, uint64_t size, AllocateMode mode, uint64_t offset,
                                 uint64_t length, StatusCompletion done) {
  const uint64_t end = offset + length;
  const bool extends = (mode == AllocateMode::kExtend || mode == AllocateMode::kZeroRange) && end > size;
  auto finish = [this, object, raw, mode, offset, length, end, extends, done = std::move(done)](Status status) mutable {
    {
      auto lock = object->lock();
      if (object->raw != raw) {  // the file was emptied while this waited: begin anew
        lock.unlock();
        return allocate_in(std::move(object), mode, offset, length, std::move(done));
      }
      if (status) {
        parts_.changes.note_modified(object);
        parts_.extents.note_unsynced(object->base.place.extent, PlaceKind::kRaw, raw);
      }
    }
    if (status && extends) return resize(std::move(object), end, Resize::kAtLeast, std::move(done));
    done(std::move(status));
  };
  ExtentId extent;
  if (!raw_extent(*object, raw, extent)) return finish(fail(Code::kBusy, fmt::format("object {} was emptied meanwhile", object->id.value)));
  const bool zeroes = mode == AllocateMode::kZeroRange || mode == AllocateMode::kZeroRangeKeepSize;
  if (zeroes || mode == AllocateMode::kPunchHole) {
    Status punched = raw->punch(offset, length);
    parts_.raw_space.measure(extent, *raw);
    parts_.space.hope();
    if (!punched || !zeroes) return finish(std::move(punched));
  }
  auto take = [this, object, raw, extent, offset, length]() -> Status {
    auto claim = parts_.raw_space.claim(extent, raw, offset, length);
    if (!claim) return std::unexpected(no_space(*object, length));
    Status taken = raw->allocate(offset, length);
    claim.reset();
    parts_.raw_space.measure(extent, *raw);
    if (!taken && taken.error().code == Code::kUnsupported) return {};  // this file system cannot allocate: the file stays sparse
    return taken;
  };
  parts_.space_waiters.with_room(std::move(take), std::move(finish));
}

// False: the object is not raw any more, or is another raw file.
bool WriteRequests::raw_extent(Object& object, const FilePtr& raw, ExtentId& extent) {
  const auto lock = object.lock();
  extent = object.base.place.extent;
  return object.raw == raw;
}

// The object is locked, and the volume has answered. After a failure fsync, close and rename fail until the missing bytes were written (as pools
// of chunks do), or the file was emptied. Reason: the volume may have taken a part of them, and the size may have grown over missing bytes.
void WriteRequests::note_raw_write(Object& object, const FilePtr& raw, uint64_t offset, uint64_t length, const Status& status) {
  if (object.raw != raw) return;
  if (!status) {
    object.note_failed_write(status.error(), offset, offset + length);
  } else if (object.write_error) {
    object.note_written(offset, offset + length);
    if (!object.write_error) parts_.dirty.wake();
  }
}

// First reserves the most that the write may allocate; it counts as the file's once the write has ended. If there is no room the turn ends:
// other writes need no room, or less. `kept`: the memory that `bytes` point into, if that is not the caller's.
void WriteRequests::write_raw(Handle* handle, FilePtr raw, uint64_t offset, std::span<const std::byte> bytes,
                              std::unique_ptr<WaitingBytes::Kept> kept, RawTurns::Turn turn, Completion<size_t> done) {
  const ObjectPtr object = handle->object;
  ExtentId extent;
  if (!raw_extent(*object, raw, extent)) {
    turn.end();
    return write(handle, offset, bytes, std::move(done));
  }
  if (auto claim = parts_.raw_space.claim(extent, raw, offset, bytes.size()))
    return write_raw_bytes(handle, std::move(raw), offset, {bytes.begin(), bytes.end()}, std::move(*claim), std::move(turn), std::move(done));
  const uint64_t length = bytes.size();
  if (kept) {
    kept->unload();
  } else {
    auto copy = parts_.waiting_bytes.keep(bytes);
    if (!copy) {
      turn.end();
      return done(std::unexpected(std::move(copy).error()));
    }
    kept = std::move(*copy);
  }
  turn.end();
  auto claimed = std::make_shared<RawSpace::Claim>();
  auto find_room = [this, object, raw, extent, offset, length, claimed]() -> Status {
    auto claim = parts_.raw_space.claim(extent, raw, offset, length);
    if (!claim) return std::unexpected(no_space(*object, length));
    *claimed = std::move(*claim);
    return {};
  };
  auto go_on = [this, handle, raw, offset, length, kept = std::move(kept), claimed, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    write_claimed_raw(handle, std::move(raw), offset, length, std::move(kept), std::move(*claimed), std::move(done));
  };
  parts_.space_waiters.with_room(std::move(find_room), std::move(go_on));
}

// For a write that has waited for room. It keeps the room while it waits for its turn: turns end by themselves.
void WriteRequests::write_claimed_raw(Handle* handle, FilePtr raw, uint64_t offset, uint64_t length, std::unique_ptr<WaitingBytes::Kept> kept,
                                      RawSpace::Claim claim, Completion<size_t> done) {
  auto begin = [this, handle, raw = std::move(raw), offset, length, kept = std::move(kept), claim = std::move(claim),
                done = std::move(done)]() mutable {
    RawTurns::Turn turn(raw_turns_, length);
    if (Status status = kept->load(); !status) {
      turn.end();
      return done(std::unexpected(std::move(status).error()));
    }
    const auto bytes = kept->bytes();
    write_raw_bytes(handle, std::move(raw), offset, {bytes.begin(), bytes.end()}, std::move(claim), std::move(turn), std::move(done));
  };
  if (raw_turns_.try_begin(length)) return begin();
  raw_turns_.wait(length, std::move(begin));
}

void WriteRequests::write_raw_bytes(Handle* handle, FilePtr raw, uint64_t offset, std::vector<std::byte> bytes,
                                    RawSpace::Claim claim, RawTurns::Turn turn, Completion<size_t> done) {
  const ObjectPtr object = handle->object;
  bool grows = false;
  {
    auto lock = object->lock();
    if (object->raw != raw) {  // emptied meanwhile: it is not raw any more, or is another raw file
      lock.unlock();
      claim = {};
      turn.end();
      return write(handle, offset, bytes, std::move(done));
    }
    grows = offset + bytes.size() > object->size_bytes;
    if (grows) {
      object->size_bytes = offset + bytes.size();
      parts_.changes.content_changed(object);  // the size is in the record
    } else {
      parts_.changes.note_modified(object);
    }
    handle->begin_writing();
  }
  if (grows && parts_.volume.features().filesystem == "xfs")  // XFS would allocate far more than is written
    if (Status grown = parts_.raw_space.grow(*raw, offset + bytes.size()); !grown) log::debug("{}", grown.error().message);
  auto kept = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  std::vector<IoRequest> requests(1);
  requests[0].kind = IoRequest::Kind::kWrite;
  requests[0].file = raw;
  requests[0].offset = offset;
  requests[0].pieces = {std::span(*kept)};
  requests[0].done = [this, kept, offset, object, raw = std::move(raw), claim = std::move(claim),
                      turn = std::move(turn), done = std::move(done)](Result<size_t> result) mutable {
    const MustNotBlock completing;
    claim = {};  // the write has ended
    turn.end();
    if (!result) parts_.counters.errors_volume_write.fetch_add(1, std::memory_order_relaxed);
    {
      const auto lock = object->lock();
      // Only now: a sync before the end of the write would not cover it. If emptied meanwhile, the file is or will be removed.
      if (object->raw == raw) parts_.extents.note_unsynced(object->base.place.extent, PlaceKind::kRaw, raw, result.value_or(0));
      note_raw_write(*object, raw, offset, kept->size(), result ? Status{} : Status(std::unexpected(result.error())));
    }
    if (result) parts_.counters.write_volume_bytes.fetch_add(*result, std::memory_order_relaxed);
    done(std::move(result));
  };
  parts_.volume.submit(std::move(requests));
}

// --- turns, for more requests than keep the volume busy ---

void WriteRequests::write_raw_in_turn(Handle* handle, FilePtr raw, uint64_t offset, std::span<const std::byte> bytes,
                                      Completion<size_t> done) {
  const uint64_t counted = bytes.size();
  if (raw_turns_.try_begin(counted))
    return write_raw(handle, std::move(raw), offset, bytes, nullptr, RawTurns::Turn(raw_turns_, counted), std::move(done));
  auto copy = parts_.waiting_bytes.keep(bytes);
  if (!copy) return done(std::unexpected(std::move(copy).error()));
  raw_turns_.wait(counted, [this, handle, raw = std::move(raw), offset, counted, kept = std::move(*copy), done = std::move(done)]() mutable {
    RawTurns::Turn turn(raw_turns_, counted);
    if (Status status = kept->load(); !status) {
      turn.end();
      return done(std::unexpected(std::move(status).error()));
    }
    const auto its_bytes = kept->bytes();
    write_raw(handle, std::move(raw), offset, its_bytes, std::move(kept), std::move(turn), std::move(done));  // copies its_bytes
  });
}

}  // namespace kvcachefs
