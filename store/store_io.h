// Private to the files that change the bytes of a body.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "store/store_impl.h"

namespace kvcachefs {

inline constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;  // 1 PiB: beyond any chunk, pool or slab
// A body's checksums are one record, and a batch of records has to fit a frame of the journal: 16 MiB of 32.
inline constexpr uint64_t kMaxSealedBytes = 512 * kGiB;

Error too_big_to_seal(const Object& object, uint64_t size_bytes);

// What one try of a write lacks, and what it was given.
struct StoreImpl::WriteAttempt {
  Reservation memory;
  FileRequest file;
  uint64_t memory_needed = 0;
  size_t load_first = 0, load_last = 0;
};

// A write, or a zeroing, until it is answered.
struct StoreImpl::PendingWrite {
  ObjectPtr object;
  Handle* handle = nullptr;  // null for zeroing
  WriteSource source;
  uint64_t zeros_left = 0;       // behind `source`
  std::vector<std::byte> owned;  // what source.bytes points to once the caller's memory is gone
  WriteAttempt attempt;
  size_t written = 0;
  std::optional<Error> error;
  int room_rounds = 0;
  Completion<size_t> done;

  uint64_t end() const { return source.offset + source.length() + zeros_left; }
  // Zeroing goes in pieces, so that the memory it takes can be written out in between. False: that was the last.
  bool next_piece() {
    constexpr uint64_t kPieceBytes = 4 * kMiB;
    if (zeros_left == 0) return false;
    source.offset += source.zeros;
    source.zeros = std::min(zeros_left, kPieceBytes - source.offset % kPieceBytes);
    zeros_left -= source.zeros;
    return true;
  }
  void finish() {
    if (error) return done(std::unexpected(std::move(*error)));
    done(written);
  }
};

}  // namespace kvcachefs
