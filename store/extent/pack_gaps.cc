#include "store/extent/pack_gaps.h"

#include <algorithm>

#include "store/base/types.h"
#include "store/base/units.h"

namespace kvcachefs {

std::vector<ByteRange> gaps_in_pack(std::vector<ByteRange> taken, uint64_t end) {
  std::sort(taken.begin(), taken.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> gaps;
  uint64_t at = kBlockBytes;
  for (const ByteRange& range : taken) {
    if (range.begin > at && at < end) gaps.push_back({at, std::min(range.begin, end)});
    at = std::max(at, range.end);
  }
  if (at < end) gaps.push_back({at, end});
  return gaps;
}

uint64_t pack_surplus_bytes(uint64_t allocated_bytes, uint64_t live_bytes, uint64_t bodies) {
  constexpr uint64_t kMapBlocks = 4, kBodiesOfAMapBlock = 256;  // ext4 maps 340 extents in a block, other file systems need less
  const uint64_t named_bytes = kBlockBytes + live_bytes;
  const uint64_t map_bytes = (kMapBlocks + bodies / kBodiesOfAMapBlock) * kBlockBytes;
  return allocated_bytes > named_bytes + map_bytes ? allocated_bytes - named_bytes : 0;
}

}  // namespace kvcachefs
