#include "store/object/data_and_holes.h"

#include <algorithm>
#include <cstring>

#include "store/base/checksum.h"

namespace kvcachefs {

namespace {
bool has_data(Block& block, uint64_t begin) {
  const uint64_t end = std::min<uint64_t>(begin + kBlockBytes, block.capacity_bytes());
  if (begin >= end) return false;
  const std::byte* bytes = block.data() + begin;
  return bytes[0] != std::byte{} || std::memcmp(bytes, bytes + 1, end - begin - 1) != 0;  // zeros: the first is, and each equals the next
}
}  // namespace

std::optional<uint64_t> DataAndHoles::find(uint64_t offset) {
  for (uint64_t at = offset; at < object_.size_bytes;) {
    const size_t index = unit_of(at);
    const uint64_t unit_end = std::min((index + 1) * kUnitBytes, object_.size_bytes);
    if (const auto whole = whole_unit(index)) {
      if (*whole == (what_ == SeekFor::kData)) return at;
      at = unit_end;
      continue;
    }
    if (unread_) return std::nullopt;
    Block& block = *object_.units[index].block;
    for (; at < unit_end; at = align_down(at, kBlockBytes) + kBlockBytes)
      if (has_data(block, align_down(at % kUnitBytes, kBlockBytes)) == (what_ == SeekFor::kData)) return at;
  }
  return std::nullopt;
}

// True: the whole unit is data; false: it is a hole. No value: its pages have to be looked at, or it has to be read (unread_).
std::optional<bool> DataAndHoles::whole_unit(size_t index) {
  const Unit* unit = object_.unit_or_null(index);
  if (unit != nullptr && unit->block) return std::nullopt;
  if (!object_.needs_load(index)) return false;
  const bool spilled = unit != nullptr && unit->spilled;
  const uint64_t length = spilled ? unit->spill_bytes : unit_length(object_.base.size_bytes, index);
  const auto& sums = object_.base.checksums;
  const uint64_t sum = spilled ? unit->spill_checksum : index < sums.size() ? sums[index] : 0;
  if (sum == checksum_of_zeros(length)) return false;
  if (takes_unread_for_data_) return true;
  unread_ = index;
  return std::nullopt;
}

}  // namespace kvcachefs
