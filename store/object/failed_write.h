// What failed writes left out of a body.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "store/base/result.h"

namespace kvcachefs {

// The first error of writes that failed, and where what they were to write is still missing.
struct FailedWrite : Error {
  uint64_t from = 0, to = UINT64_MAX;
  bool undone = false;  // the body is whole without it: what is left of the error is that its name cannot become another

  void note(const Error& error, uint64_t begin, uint64_t end) {
    if (std::exchange(undone, false)) static_cast<Error&>(*this) = error;
    from = std::min(from, begin);
    to = std::max(to, end);
  }
  // [begin, end) was written: whether nothing is missing any more.
  bool covered_by(uint64_t begin, uint64_t end) {
    if (begin <= from) from = std::max(from, end);
    if (end >= to) to = std::min(to, begin);
    return from >= to;
  }
};

}  // namespace kvcachefs
