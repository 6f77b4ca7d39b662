// Finds the parts of a pack extent without a body, and tells from the file's blocks whether those parts take space.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcachefs {

struct ByteRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// The parts of [behind the header, end) that `taken` does not cover; `taken` in any order, in whole blocks, perhaps overlapping.
std::vector<ByteRange> gaps_in_pack(std::vector<ByteRange> taken, uint64_t end);

// Bytes that a pack file's blocks take beyond its header and its `bodies`, which take `live_bytes` in whole blocks. 0 if the file
// system may need that much to map the file: 16 KiB, and 4 KiB more for each 256 bodies.
uint64_t pack_surplus_bytes(uint64_t allocated_bytes, uint64_t live_bytes, uint64_t bodies);

}  // namespace kvcachefs
