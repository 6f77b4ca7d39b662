// Which parts of a pack extent no body lies in, and how to tell from outside that they hold blocks.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcachefs {

struct ByteRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Of [behind the header, end) what `taken` leaves; `taken` in any order, in whole blocks, perhaps overlapping.
std::vector<ByteRange> gaps_in_pack(std::vector<ByteRange> taken, uint64_t end);

// Bytes of blocks of a pack file beyond its header and its `bodies`, which take `live_bytes` in whole blocks. 0 if the file
// system may need as much itself to map the file: 16 KiB, and 4 KiB more for each 256 bodies.
uint64_t pack_surplus_bytes(uint64_t allocated_bytes, uint64_t live_bytes, uint64_t bodies);

}  // namespace kvcachefs
