#include "store/volume/sim_content.h"

#include <algorithm>
#include <cstring>

namespace kvcachefs {

uint64_t SimContent::missing_bytes(uint64_t offset, uint64_t length) const {
  if (length == 0) return 0;
  const uint64_t first = offset / kBlockBytes;
  const uint64_t end = div_ceil(offset + length, kBlockBytes);
  const auto present = std::distance(blocks_.lower_bound(first), blocks_.lower_bound(end));
  return (end - first - static_cast<uint64_t>(present)) * kBlockBytes;
}

size_t SimContent::read(std::span<std::byte> into, uint64_t offset) const {
  if (offset >= size_ || into.empty()) return 0;
  into = into.first(static_cast<size_t>(std::min<uint64_t>(into.size(), size_ - offset)));
  std::ranges::fill(into, std::byte{0});
  const uint64_t end = offset + into.size();
  for (auto it = blocks_.lower_bound(offset / kBlockBytes); it != blocks_.end(); ++it) {
    const uint64_t start = it->first * kBlockBytes;
    if (start >= end) break;
    if (!it->second) continue;
    const uint64_t from = std::max(start, offset);
    const uint64_t to = std::min(start + kBlockBytes, end);
    std::memcpy(into.data() + (from - offset), it->second->data() + (from - start), static_cast<size_t>(to - from));
  }
  return into.size();
}

SimContent::Block& SimContent::writable_block(uint64_t index) {
  std::shared_ptr<Block>& block = blocks_[index];
  if (!block)
    block = std::make_shared<Block>();
  else if (block.use_count() > 1)
    block = std::make_shared<Block>(*block);
  return *block;
}

void SimContent::write(uint64_t offset, std::span<const std::byte> data) {
  size_ = std::max(size_, data.empty() ? 0 : offset + data.size());
  while (!data.empty()) {
    const auto within = static_cast<size_t>(offset % kBlockBytes);
    const size_t count = std::min<size_t>(data.size(), kBlockBytes - within);
    std::memcpy(writable_block(offset / kBlockBytes).data() + within, data.data(), count);
    data = data.subspan(count);
    offset += count;
  }
}

void SimContent::zero_within(uint64_t index, size_t from, size_t to) {
  const auto found = blocks_.find(index);
  if (found == blocks_.end() || !found->second || from >= to) return;
  std::memset(writable_block(index).data() + from, 0, to - from);
}

void SimContent::truncate(uint64_t size) {
  if (size < size_) {
    blocks_.erase(blocks_.lower_bound(div_ceil(size, kBlockBytes)), blocks_.end());
    if (size % kBlockBytes != 0) zero_within(size / kBlockBytes, static_cast<size_t>(size % kBlockBytes), kBlockBytes);
  }
  size_ = size;
}

void SimContent::allocate(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  const uint64_t end = div_ceil(offset + length, kBlockBytes);
  for (uint64_t index = offset / kBlockBytes; index < end; ++index) blocks_.try_emplace(index);
  size_ = std::max(size_, offset + length);
}

void SimContent::punch(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  const uint64_t end = offset + length;
  const uint64_t first_whole = div_ceil(offset, kBlockBytes);
  const uint64_t end_whole = end / kBlockBytes;
  if (first_whole > end_whole) {  // within one block
    zero_within(end_whole, static_cast<size_t>(offset % kBlockBytes), static_cast<size_t>(end % kBlockBytes));
    return;
  }
  if (offset % kBlockBytes != 0) zero_within(first_whole - 1, static_cast<size_t>(offset % kBlockBytes), kBlockBytes);
  zero_within(end_whole, 0, static_cast<size_t>(end % kBlockBytes));
  blocks_.erase(blocks_.lower_bound(first_whole), blocks_.lower_bound(end_whole));
}

void SimContent::flip(uint64_t offset, std::byte xor_with) {
  writable_block(offset / kBlockBytes)[static_cast<size_t>(offset % kBlockBytes)] ^= xor_with;
}

std::optional<uint64_t> SimContent::next_data(uint64_t offset) const {
  for (auto it = blocks_.lower_bound(offset / kBlockBytes); it != blocks_.end(); ++it) {
    const uint64_t found = std::max(offset, it->first * kBlockBytes);
    if (found >= size_) break;
    if (it->second) return found;
  }
  return std::nullopt;
}

std::optional<uint64_t> SimContent::next_hole(uint64_t offset) const {
  if (offset >= size_) return std::nullopt;
  uint64_t index = offset / kBlockBytes;
  for (auto it = blocks_.find(index); it != blocks_.end() && it->first == index && it->second; ++it) ++index;
  return std::min(size_, std::max(offset, index * kBlockBytes));
}

}  // namespace kvcachefs
