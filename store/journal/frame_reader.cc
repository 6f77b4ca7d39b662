#include "store/journal/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {
namespace {

constexpr size_t kWindowBytes = 1024 * 1024;
constexpr uint64_t kSearchFactor = 4, kMostCountedBytes = kGiB;  // a journal is far smaller than kMostCountedBytes
constexpr uint64_t kMostZeroBytes = kGiB;

bool is_zero(ByteSpan bytes) {
  return bytes.empty() || (bytes[0] == std::byte{} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace

FrameReader::FrameReader(Read read, uint64_t size_bytes, FrameKey key, NextData next_data)
    : read_(std::move(read)),
      size_bytes_(size_bytes),
      key_(key),
      next_data_(std::move(next_data)),
      search_budget_bytes_(kSearchFactor * std::min(size_bytes, kMostCountedBytes) + kMaxFramePayloadBytes),
      zeros_budget_bytes_(kMostZeroBytes) {}

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
    window_.resize(std::min(*got, wanted));  // the file shrank meanwhile: it ends here
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

// The window from `offset` on if a frame header fits there, else a new window. Shorter at the end of the file.
Result<ByteSpan> FrameReader::view_to_search(uint64_t offset) {
  const uint64_t window_end = window_offset_ + window_.size();
  if (offset >= window_offset_ && offset + kFrameHeaderBytes <= window_end) return view(offset, static_cast<size_t>(window_end - offset));
  return view(offset, kWindowBytes);
}

// Returns the end of a hole at `offset`. No frame begins in a hole: the magic has no zero byte.
uint64_t FrameReader::behind_hole(uint64_t offset) const {
  if (!next_data_) return offset;
  const auto data = next_data_(offset);
  if (!data) return data.error().code == Code::kNoData ? size_bytes_ : offset;
  return std::max(*data, offset);
}

Result<std::optional<Frame>> FrameReader::find(uint64_t offset) {
  Bytes magic;
  ByteWriter(magic).u32(kFrameMagic);
  while (offset < size_bytes_) {
    KVC_ASSIGN(const ByteSpan bytes, view_to_search(offset));
    if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
    const auto* const hit = static_cast<const std::byte*>(memmem(bytes.data(), bytes.size(), magic.data(), magic.size()));
    if (hit == nullptr) {
      offset += bytes.size() - (magic.size() - 1);  // the magic may cross the window's end
      if (!is_zero(bytes)) continue;
      if (bytes.size() > zeros_budget_bytes_) return std::nullopt;
      zeros_budget_bytes_ -= bytes.size();
      offset = behind_hole(offset);
      continue;
    }
    offset += static_cast<uint64_t>(hit - bytes.data());
    const auto length = FrameKey::claimed_length(bytes.subspan(static_cast<size_t>(hit - bytes.data())));
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
