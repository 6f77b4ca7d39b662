// How a file is filled, from empty on: piece by piece, as a chunk is, or with changes of bytes that were written before.
#pragma once

#include <cstdint>

#include "store/object/written_ranges.h"

namespace kvcachefs {

// Not thread-safe. The order of the pieces, their number and the opens that write them mean nothing: clients write a chunk with
// several threads, sized beforehand or not, some twice. The sign of a change is a byte that is written again while others are not.
class FirstWrites {
 public:
  void add(uint64_t begin, uint64_t end, bool appended) {
    appended_ |= appended;
    written_.for_each_in(begin, end, [this](uint64_t from, uint64_t to) { again_.add(from, to); });
    written_.add(begin, end);
  }
  // Judges by the writes until now. Call it when no client has the file open for writing; further opens may follow.
  bool are_of_a_chunk(uint64_t size_bytes) {
    if (again_.covers(size_bytes)) again_ = {};  // stored twice
    return !are_patched(size_bytes);
  }
  // True: the bytes written until now are no chunk, unless they are stored again as a whole.
  bool are_patched(uint64_t size_bytes) const { return appended_ || !(again_.empty() || again_.covers(size_bytes)); }

 private:
  WrittenRanges written_, again_;
  bool appended_ = false;  // written by an open with O_APPEND, as logs are and chunks are not
};

}  // namespace kvcachefs
