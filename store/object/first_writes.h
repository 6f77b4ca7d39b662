// How a file is written by those who fill it, from empty on: piece by piece, as a chunk is, or with changes of what was written.
#pragma once

#include <cstdint>

#include "store/object/written_ranges.h"

namespace kvcachefs {

// Not thread-safe. The order of the pieces, their number and the opens that write them mean nothing: clients write a chunk with
// several threads, sized beforehand or not, some twice. What tells is a byte that is written again while others are not.
class FirstWrites {
 public:
  void add(uint64_t begin, uint64_t end, bool appended) {
    appended_ |= appended;
    written_.for_each_in(begin, end, [this](uint64_t from, uint64_t to) { again_.add(from, to); });
    written_.add(begin, end);
  }
  // By what was written until now. Call it when nobody has the file open for writing; then further opens may follow.
  bool are_of_a_chunk(uint64_t size_bytes) {
    if (again_.covers(size_bytes)) again_ = {};  // stored twice
    return !are_patched(size_bytes) && !lie_about(size_bytes);
  }
  // What was written until now is no chunk, unless it is stored again as a whole.
  bool are_patched(uint64_t size_bytes) const { return appended_ || !(again_.empty() || again_.covers(size_bytes)); }

 private:
  // Of a file that was sized beforehand less than half was written, here and there. From its beginning on, it may be a short chunk.
  bool lie_about(uint64_t size_bytes) const { return !written_.begins_it() && written_.bytes() < size_bytes / 2; }

  WrittenRanges written_, again_;
  bool appended_ = false;  // by an open with O_APPEND, as logs are written and chunks are not
};

}  // namespace kvcachefs
