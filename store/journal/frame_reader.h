// Reads the frames of one file in order, a window at a time, and finds the next valid one behind damage.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/journal/frame.h"

namespace kvcachefs {

struct Frame {
  uint64_t offset = 0;  // offset of its header
  ByteSpan payload;     // points into the reader's window: valid until its next call
  uint64_t end() const { return offset + kFrameHeaderBytes + payload.size(); }
};

// Not thread-safe. Holds a window of about 1 MiB, or of one frame if that is longer.
class FrameReader {
 public:
  // Like File::read: returns fewer bytes than asked only at the end of the file.
  using Read = std::function<Result<size_t>(std::span<std::byte> into, uint64_t offset)>;

  // Like File::next_data, if there is such a call. Errors other than kNoData are ignored.
  using NextData = std::function<Result<uint64_t>(uint64_t offset)>;

  // `size_bytes`: no frame ends behind this.
  FrameReader(Read read, uint64_t size_bytes, FrameKey key, NextData next_data = {});

  uint64_t size_bytes() const { return size_bytes_; }
  // The first `length` bytes of the file, or fewer if it is shorter (for the file header).
  Result<ByteSpan> head(size_t length) { return view(0, length); }
  // The frame at `offset`; nullopt if there is no valid frame. Errors are those of reading.
  Result<std::optional<Frame>> at(uint64_t offset);
  // The first valid frame at or after `offset`; nullopt if there is none. Skips holes, which cost an attacker nothing to make. Gives up
  // (nullopt) after hashing a few times the file's size in false starts, or after reading a GiB of zeros that the file system does not
  // report as holes: so a crafted file costs time linear in its real content.
  Result<std::optional<Frame>> find(uint64_t offset);

 private:
  Result<ByteSpan> view(uint64_t offset, size_t length);
  Result<ByteSpan> view_to_search(uint64_t offset);
  uint64_t behind_hole(uint64_t offset) const;

  Read read_;
  uint64_t size_bytes_;
  FrameKey key_;
  NextData next_data_;
  Bytes window_;
  uint64_t window_offset_ = 0;
  uint64_t search_budget_bytes_;
  uint64_t zeros_budget_bytes_;
};

}  // namespace kvcachefs
