// Serves reads, and finds data and holes. A read is answered from RAM; it begins again once the units that it lacks have arrived.
#include "store/requests/read_requests.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "store/object/data_and_holes.h"

namespace kvcachefs {

// A read that is large for the memory; it goes in pieces.
struct ReadRequests::PieceByPiece {
  ObjectPtr object;
  uint64_t offset = 0;
  std::vector<std::byte> bytes;
  size_t got = 0;
  Completion<ReadReply> done;
};

void ReadRequests::read_next_piece(std::shared_ptr<PieceByPiece> read) {
  const size_t length = std::min<uint64_t>(read->bytes.size() - read->got, parts_.cache.piece_bytes() / 2);
  ObjectPtr object = read->object;
  const uint64_t offset = read->offset + read->got;
  read_attempt(std::move(object), offset, length, 0, nullptr, [this, read = std::move(read), length](Result<ReadReply> piece) mutable {
    if (!piece) return read->done(std::move(piece));
    for (const iovec& from : piece->pieces) {
      std::memcpy(read->bytes.data() + read->got, from.iov_base, from.iov_len);
      read->got += from.iov_len;
    }
    const bool at_end = piece->bytes < length || read->got == read->bytes.size();
    *piece = {};
    if (!at_end) return read_next_piece(std::move(read));
    ReadReply whole;
    whole.bytes = read->got;
    whole.pieces.push_back({read->bytes.data(), read->got});
    whole.keep.push_back(std::shared_ptr<void>(read, read->bytes.data()));
    read->done(std::move(whole));
  });
}

void ReadRequests::read(Handle* handle, uint64_t offset, size_t length, Completion<ReadReply> done) {
  parts_.counters.read_requests.fetch_add(1, std::memory_order_relaxed);
  FilePtr raw;
  {
    const auto lock = handle->object->lock();
    raw = handle->object->raw;
  }
  if (raw) return read_raw_in_turn(handle->object, std::move(raw), offset, length, std::move(done));
  parts_.accesses.read(handle, handle->object->id, offset, length, parts_.clock.monotonic_ns());
  if (length > parts_.cache.most_read_bytes()) {
    auto pieces = std::make_shared<PieceByPiece>();
    pieces->object = handle->object;
    pieces->offset = offset;
    pieces->bytes.resize(length);
    pieces->done = std::move(done);
    return read_next_piece(std::move(pieces));
  }
  read_attempt(handle->object, offset, length, 0, nullptr, std::move(done));
}

void ReadRequests::load(const ObjectPtr& object, LoadRange range, std::shared_ptr<WantedUnits> pin, StatusCompletion done) {
  parts_.read_ahead.note_demand(object->id);
  parts_.loader.load(object, range, MemoryFor::kReader, std::move(pin), std::move(done));
}

void ReadRequests::read_attempt(ObjectPtr object, uint64_t offset, size_t length, int attempts, std::shared_ptr<WantedUnits> pin,
                                Completion<ReadReply> done) {
  // The store also reads ahead inside the body, so that several requests to the volume are in flight. Not much of a small memory: reads here and there in a
  // large body would push out each other's units.
  const uint64_t ahead_bytes = std::min(8 * kMiB, parts_.cache.piece_bytes() / 2);
  constexpr int kMaxAttempts = 64;  // the body can be replaced again and again under a reader
  ReadPlan plan;
  {
    auto lock = object->lock();
    if (FilePtr raw = object->raw) {  // it became raw since the call
      lock.unlock();
      return read_raw_in_turn(std::move(object), std::move(raw), offset, length, std::move(done));
    }
    plan = object->plan_read(offset, length);
  }
  if (!plan.lacks_units) {
    if (pin) pin->release();  // the reply holds the blocks that it needs
    if (attempts == 0) parts_.counters.read_bytes_from_ram.fetch_add(plan.length, std::memory_order_relaxed);
    return done(std::move(plan.reply));
  }
  if (plan.quarantined)
    return done(fail(Code::kCorrupt, fmt::format("object {} failed its checksum and is quarantined", object->id.value)));
  if (attempts >= kMaxAttempts)
    return done(fail(Code::kIo, fmt::format("object {}: no memory to read it into; raise the memory option", object->id.value)));
  // Reads ahead only in the first attempt: if memory is short, units read ahead of one reader push out those that another waits for.
  const size_t wanted = plan.wanted_last;
  const size_t ahead = attempts > 0 ? wanted : std::min<size_t>(plan.body_units, wanted + ahead_bytes / kUnitBytes);
  if (!pin) pin = std::make_shared<WantedUnits>();
  pin->release();  // units held by an earlier attempt; the body has changed since
  // The whole range: units that are there now may be given up before there is memory for the others.
  load(object, {unit_of(offset), wanted, ahead}, pin,
       [this, object, offset, length = plan.length, attempts, pin, done = std::move(done)](Status status) mutable {
               if (!status) return done(std::unexpected(std::move(status).error()));
               read_attempt(std::move(object), offset, length, attempts + 1, std::move(pin), std::move(done));
             });
}

// --- of raw files ---

void ReadRequests::read_raw_in_turn(ObjectPtr object, FilePtr raw, uint64_t offset, size_t length, Completion<ReadReply> done) {
  auto finish = [this, length, done = std::move(done)](Result<ReadReply> reply) mutable {
    done(std::move(reply));  // this hands the bytes to the client
    raw_turns_.end(length);
  };
  if (raw_turns_.try_begin(length)) return read_raw(std::move(object), std::move(raw), offset, length, std::move(finish));
  raw_turns_.wait(length, [this, object = std::move(object), raw = std::move(raw), offset, length, finish = std::move(finish)]() mutable {
    read_raw(std::move(object), std::move(raw), offset, length, std::move(finish));
  });
}

void ReadRequests::read_raw(ObjectPtr object, FilePtr raw, uint64_t offset, size_t length, Completion<ReadReply> done) {
  {
    const auto lock = object->lock();
    length = std::min<uint64_t>(length, object->size_bytes - std::min(offset, object->size_bytes));
  }
  if (length == 0) return done(ReadReply{});
  auto buffer = std::make_shared<std::vector<std::byte>>(length);
  std::vector<IoRequest> requests(1);
  requests[0].file = std::move(raw);
  requests[0].offset = offset;
  requests[0].pieces = {std::span(*buffer)};
  requests[0].done = [this, buffer, length, done = std::move(done)](Result<size_t> result) mutable {
    const MustNotBlock completing;
    if (!result) {
      parts_.counters.errors_volume_read.fetch_add(1, std::memory_order_relaxed);
      return done(std::unexpected(std::move(result).error()));
    }
    parts_.counters.read_bytes_from_volume.fetch_add(*result, std::memory_order_relaxed);
    ReadReply reply;  // bytes that the backing file does not have yet read as zeros: the vector is zeroed
    reply.bytes = length;
    reply.pieces.push_back({buffer->data(), length});
    reply.keep.push_back(std::move(buffer));
    done(std::move(reply));
  };
  parts_.volume.submit(std::move(requests));
}

// --- where data and holes lie ---

namespace {
std::unexpected<Error> nothing_past(const Object& object, uint64_t offset) {
  return fail(Code::kNoData, fmt::format("object {}: neither data nor a hole past {}", object.id.value, offset));
}

// The backing file may be shorter or longer than the body.
Result<uint64_t> seek_raw(File& raw, SeekFor what, uint64_t offset, uint64_t size_bytes) {
  auto found = what == SeekFor::kData ? raw.next_data(offset) : raw.next_hole(offset);
  if (what == SeekFor::kHole && !found && found.error().code == Code::kNoData) return offset;
  if (found && *found >= size_bytes) {
    if (what == SeekFor::kHole) return size_bytes;
    return fail(Code::kNoData, fmt::format("no data past {}", offset));
  }
  return found;
}
}  // namespace

void ReadRequests::seek(Handle* handle, SeekFor what, uint64_t offset, Completion<uint64_t> done) {
  seek_in(handle->object, what, offset, 0, std::move(done));
}

// Searches; loads the next unit that it has to look into, with some units ahead, and then continues from there.
void ReadRequests::seek_in(ObjectPtr object, SeekFor what, uint64_t offset, int attempts, Completion<uint64_t> done) {
  constexpr size_t kUnitsAhead = 16;
  constexpr int kMostInVain = 64;  // loads of one place: a unit may be evicted before the search looks at it
  auto lock = object->lock();
  const uint64_t size_bytes = object->size_bytes;
  if (offset >= size_bytes) {
    lock.unlock();
    return done(nothing_past(*object, offset));
  }
  if (FilePtr raw = object->raw) {
    lock.unlock();
    return parts_.opener.run([raw = std::move(raw), what, offset, size_bytes, done = std::move(done)]() mutable {
      done(seek_raw(*raw, what, offset, size_bytes));
    });
  }
  DataAndHoles search(*object, what, attempts >= kMostInVain || object->base.quarantined);
  const auto found = search.find(offset);
  if (!search.unread()) {
    lock.unlock();
    if (found) return done(*found);
    return what == SeekFor::kHole ? done(size_bytes) : done(nothing_past(*object, offset));
  }
  lock.unlock();
  // No page before that unit is of the wanted kind.
  const uint64_t next = std::max(offset, *search.unread() * kUnitBytes);
  const size_t last = std::min<size_t>(*search.unread() + kUnitsAhead, div_ceil(size_bytes, kUnitBytes));
  const int attempts_there = next == offset ? attempts + 1 : 0;
  auto pin = std::make_shared<WantedUnits>();  // held until the search has looked at the unit
  load(object, {*search.unread(), *search.unread() + 1, last}, pin,
       [this, object, what, next, attempts_there, pin, done = std::move(done)](Status status) mutable {
               if (!status) return done(std::unexpected(std::move(status).error()));
               seek_in(std::move(object), what, next, attempts_there, std::move(done));
             });
}

Result<uint64_t> ReadRequests::seek_now(Handle* handle, SeekFor what, uint64_t offset) {
  Object& object = *handle->object;
  auto lock = object.lock();
  const uint64_t size_bytes = object.size_bytes;
  if (offset >= size_bytes) return nothing_past(object, offset);
  if (FilePtr raw = object.raw) {
    lock.unlock();
    return seek_raw(*raw, what, offset, size_bytes);
  }
  if (auto found = DataAndHoles(object, what, true).find(offset)) return *found;
  if (what == SeekFor::kHole) return size_bytes;
  return nothing_past(object, offset);
}

}  // namespace kvcachefs
