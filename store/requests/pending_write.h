// The state of a write while it is tried and while it waits. Private to the files of WriteRequests.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/limits.h"
#include "store/cache/waiting_bytes.h"
#include "store/load/load_job.h"
#include "store/requests/write_requests.h"

namespace kvcachefs {

Error too_big_to_seal(const Object& object, uint64_t size_bytes);

// The resources that one try of a write lacks, and those that it was given.
struct WriteRequests::WriteAttempt {
  Reservation memory;
  FileRequest file;
  uint64_t memory_needed = 0;  // beside the memory for the loads
  // Units that have to be read first, because the write changes a part of them: at most the first and the last.
  std::array<size_t, 2> loads{};
  size_t load_count = 0;
  bool with_clones = false;  // units that it read had other holders by then, or were gone: next time it needs memory for copies too
};

// A write, or a zeroing, until it is answered.
struct WriteRequests::PendingWrite {
  ObjectPtr object;
  Handle* handle = nullptr;  // null for zeroing
  WriteOf of = WriteOf::kCall;
  WriteSource source;
  uint64_t zeros_left = 0;       // behind `source`
  std::span<const std::byte> bytes_left;  // behind `source`, of a write that is large for the memory
  std::unique_ptr<WaitingBytes::Kept> kept;  // a copy; source.bytes and bytes_left point into it once the caller's memory is gone
  WriteAttempt attempt;
  std::array<WantedUnits, 2> pins;  // of attempt.loads
  size_t written = 0;
  std::optional<Error> error;
  SpaceWaiters::Turn turn_for_room;
  Completion<size_t> done;

  uint64_t end() const { return source.offset + source.length() + zeros_left + bytes_left.size(); }
  std::span<const std::byte> rest() const { return {source.bytes.data(), source.bytes.size() + bytes_left.size()}; }
  // Copies the bytes that are left, before the caller's memory is gone. May block on the volume.
  Status own_bytes(WaitingBytes& waiting) {
    if (source.bytes.empty() || kept) return {};
    KVC_ASSIGN(kept, waiting.keep(rest()));
    point_into_kept();
    return {};
  }
  bool has_its_bytes() const { return !kept || kept->in_memory(); }
  // Call before the bytes are read: the memory that they point into may have been put aside. Blocks on the volume.
  Status fetch_bytes() {
    if (has_its_bytes()) return {};
    KVC_TRY(kept->load());
    point_into_kept();
    return {};
  }
  void put_bytes_aside() {
    if (kept) kept->unload();
  }
  void point_into_kept() {
    if (!kept->in_memory()) return;
    const auto left = kept->bytes().last(rest().size());
    bytes_left = left.subspan(source.bytes.size());
    source.bytes = left.first(source.bytes.size());
  }
  void let_go_of_units() {
    for (WantedUnits& pin : pins) pin.release();
  }
  // Caller does not hold the lock of the body.
  void let_go_of_memory() {
    attempt.memory = Reservation();
    let_go_of_units();
  }
  // Goes on to the next piece. Pieces, so that the memory they take can be written out in between. False: that was the last.
  bool next_piece(uint64_t most_bytes) {
    constexpr uint64_t kPieceBytes = 4 * kMiB;
    if (!bytes_left.empty()) {
      source.offset += source.bytes.size();
      source.bytes = bytes_left.first(std::min<uint64_t>(bytes_left.size(), most_bytes));
      bytes_left = bytes_left.subspan(source.bytes.size());
      return true;
    }
    if (zeros_left == 0) return false;
    source.offset += source.zeros;
    const uint64_t piece_bytes = std::min(kPieceBytes, most_bytes);
    source.zeros = std::min(zeros_left, piece_bytes - source.offset % piece_bytes);
    zeros_left -= source.zeros;
    return true;
  }
  void finish() {
    if (error && handle != nullptr) handle->note_failed_write();
    if (error) return done(std::unexpected(std::move(*error)));
    done(written);
  }
};

}  // namespace kvcachefs
