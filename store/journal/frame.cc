#include "store/journal/frame.h"

#include "store/base/checksum.h"

namespace kvcachefs {

FrameKey::FrameKey(FileKind kind, const FileIdentity& identity, uint64_t seq) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.u8(static_cast<uint8_t>(kind));
  encode_identity(identity, out);
  out.u64(seq);
  key_ = checksum(ByteSpan(bytes));
}

void FrameKey::append(ByteSpan payload, uint64_t offset, Bytes& out) const {
  ByteWriter writer(out);
  writer.u32(kFrameMagic);
  writer.u32(static_cast<uint32_t>(payload.size()));
  writer.u64(sum(payload, offset));
  writer.raw(payload);
}

std::optional<uint32_t> FrameKey::claimed_length(ByteSpan header) {
  ByteReader in(header);
  const uint32_t magic = in.u32();
  const uint32_t length = in.u32();
  if (!in.ok() || magic != kFrameMagic || length == 0 || length > kMaxFramePayloadBytes) return std::nullopt;
  return length;
}

bool FrameKey::valid(ByteSpan frame, uint64_t offset) const {
  const auto length = claimed_length(frame);
  if (!length || frame.size() != kFrameHeaderBytes + *length) return false;
  ByteReader in(frame.subspan(2 * sizeof(uint32_t)));
  return in.u64() == sum(frame.subspan(kFrameHeaderBytes), offset);
}

// The checksum also covers the magic and the length: the length through the number of bytes hashed and through the seed.
uint64_t FrameKey::sum(ByteSpan payload, uint64_t offset) const {
  Bytes place;
  place.reserve(16);
  ByteWriter out(place);
  out.u32(kFrameMagic);
  out.u32(static_cast<uint32_t>(payload.size()));
  out.u64(offset);
  return checksum(payload, checksum(ByteSpan(place), key_));
}

}  // namespace kvcachefs
