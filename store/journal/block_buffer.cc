#include "store/journal/block_buffer.h"

#include <algorithm>
#include <cerrno>

#include "store/base/units.h"

namespace kvcachefs {

Result<std::span<std::byte>> BlockBuffer::take(uint64_t bytes) {
  const auto whole = static_cast<size_t>(align_up(bytes, kBlockBytes));
  if (whole > size_bytes_) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, whole)));
    size_bytes_ = memory_ ? whole : 0;
    if (!memory_) return fail_errno(ENOMEM, "memory for blocks of a journal");
  }
  return std::span(memory_.get(), whole);
}

void BlockBuffer::shrink(size_t bytes) {
  if (size_bytes_ <= bytes) return;
  memory_.reset();
  size_bytes_ = 0;
}

Status BlockBuffer::write(File& file, ByteSpan bytes, uint64_t offset) {
  KVC_ASSIGN(const auto blocks, take(bytes.size()));
  std::ranges::copy(bytes, blocks.begin());
  std::ranges::fill(blocks.subspan(bytes.size()), std::byte{0});
  const ByteSpan pieces[] = {blocks};
  return file.write(pieces, offset);
}

Result<size_t> BlockBuffer::read(File& file, std::span<std::byte> into, uint64_t offset) {
  if (!file.is_direct()) return file.read(into, offset);
  const uint64_t start = offset / kBlockBytes * kBlockBytes;
  KVC_ASSIGN(const auto blocks, take(offset - start + into.size()));
  KVC_ASSIGN(const size_t got, file.read(blocks, start));
  const auto skipped = static_cast<size_t>(offset - start);
  const size_t length = got <= skipped ? 0 : std::min(got - skipped, into.size());
  std::copy_n(blocks.begin() + static_cast<ptrdiff_t>(skipped), length, into.begin());
  return length;
}

}  // namespace kvcachefs
