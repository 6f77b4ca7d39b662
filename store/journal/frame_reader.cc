#include "store/journal/frame_reader.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {
namespace {

constexpr size_t kWindowBytes = 1024 * 1024;
constexpr uint64_t kSearchFactor = 4;

}  // namespace

FrameReader::FrameReader(Read read, uint64_t size_bytes, FrameKey key)
    : read_(std::move(read)),
      size_bytes_(size_bytes),
      key_(key),
      search_budget_bytes_(kSearchFactor * size_bytes + kMaxFramePayloadBytes) {}

Result<ByteSpan> FrameReader::view(uint64_t offset, size_t length) {
  if (offset >= size_bytes_) return ByteSpan{};
  length = static_cast<size_t>(std::min<uint64_t>(length, size_bytes_ - offset));
  const bool inside = offset >= window_offset_ && offset - window_offset_ <= window_.size() &&
                      length <= window_.size() - static_cast<size_t>(offset - window_offset_);
  if (!inside) {
    const size_t wanted = static_cast<size_t>(std::min<uint64_t>(std::max(length, kWindowBytes), size_bytes_ - offset));
    window_.resize(wanted);
    window_offset_ = offset;
    auto got = read_(window_, offset);
    if (!got) {
      window_.clear();
      return std::unexpected(std::move(got).error());
    }
    window_.resize(std::min(*got, wanted));  // a file that shrank meanwhile ends here
    length = std::min(length, window_.size());
  }
  return ByteSpan(window_).subspan(static_cast<size_t>(offset - window_offset_), length);
}

Result<std::optional<Frame>> FrameReader::at(uint64_t offset) {
  KVC_ASSIGN(const ByteSpan header, view(offset, kFrameHeaderBytes));
  const auto length = FrameKey::claimed_length(header);
  if (!length || header.size() < kFrameHeaderBytes) return std::nullopt;
  const size_t whole = kFrameHeaderBytes + *length;
  if (whole > size_bytes_ - offset) return std::nullopt;
  KVC_ASSIGN(const ByteSpan frame, view(offset, whole));
  if (!key_.valid(frame, offset)) return std::nullopt;
  return Frame{offset, frame.subspan(kFrameHeaderBytes)};
}

Result<std::optional<Frame>> FrameReader::find(uint64_t offset) {
  Bytes magic;
  ByteWriter(magic).u32(kFrameMagic);
  while (offset < size_bytes_) {
    KVC_ASSIGN(const ByteSpan bytes, view(offset, kWindowBytes));
    const auto hit = std::search(bytes.begin(), bytes.end(), magic.begin(), magic.end());
    if (hit == bytes.end()) {
      if (bytes.size() < kWindowBytes) return std::nullopt;
      offset += bytes.size() - (magic.size() - 1);  // the magic may straddle the border
      continue;
    }
    offset += static_cast<uint64_t>(hit - bytes.begin());
    const auto length = FrameKey::claimed_length(bytes.subspan(static_cast<size_t>(hit - bytes.begin())));
    const uint64_t cost = kFrameHeaderBytes + length.value_or(0);
    if (cost > search_budget_bytes_) return std::nullopt;
    search_budget_bytes_ -= cost;
    KVC_ASSIGN(const auto frame, at(offset));
    if (frame) return frame;
    ++offset;
  }
  return std::nullopt;
}

}  // namespace kvcachefs
