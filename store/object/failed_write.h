// The bytes of a body that failed writes left unwritten.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "store/base/result.h"

namespace kvcachefs {

// The first error of the writes that failed, and the range [from, to) in which their bytes are still missing.
struct FailedWrite : Error {
  uint64_t from = 0, to = UINT64_MAX;
  bool undone = false;  // the body was undone and is whole: only its rename and link still fail

  void note(const Error& error, uint64_t begin, uint64_t end) {
    if (std::exchange(undone, false)) static_cast<Error&>(*this) = error;
    from = std::min(from, begin);
    to = std::max(to, end);
  }
  // [begin, end) was written. True: no byte is missing any more.
  bool covered_by(uint64_t begin, uint64_t end) {
    if (begin <= from) from = std::max(from, end);
    if (end >= to) to = std::min(to, begin);
    return from >= to;
  }
};

}  // namespace kvcachefs
