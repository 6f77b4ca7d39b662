// Frames: the checksummed pieces that journals and checkpoints are made of (store/FORMAT.md, "Frame").
#pragma once

#include <cstdint>
#include <optional>

#include "store/base/bytes.h"
#include "store/journal/file_header.h"

namespace kvcachefs {

inline constexpr size_t kFrameHeaderBytes = 16;
// A longer payload is neither written nor accepted: this bounds the memory of a reader.
inline constexpr size_t kMaxFramePayloadBytes = 32 * 1024 * 1024;
inline constexpr uint32_t kFrameMagic = 0xf7a35eb1;

// Seeds the checksums of one file's frames, together with the offset of each: a frame left over from
// another file, epoch, node or volume, or from another place in its own file, never validates.
class FrameKey {
 public:
  FrameKey(FileKind kind, const FileIdentity& identity, uint64_t seq);

  // Appends the frame of `payload` to `out`; the caller will write it at `offset` of the file.
  void append(ByteSpan payload, uint64_t offset, Bytes& out) const;

  // The payload length in the 16 bytes at `header`, not verified; nullopt if they are no frame header.
  static std::optional<uint32_t> claimed_length(ByteSpan header);
  // Whether `frame` (header and payload, exactly) is a frame of this file at `offset`.
  bool valid(ByteSpan frame, uint64_t offset) const;

 private:
  uint64_t sum(ByteSpan payload, uint64_t offset) const;
  uint64_t key_;
};

}  // namespace kvcachefs
