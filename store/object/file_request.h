// The part of a memory file that a request lacks for the body, and the file or pages that it was given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/memory/memory_file.h"

namespace kvcachefs {

struct FileRequest {
  bool wanted = false;          // the request lacks
  uint64_t bytes = 0;           // ... a file for so many bytes, or
  MemoryFilePtr grows;          // ... pages of this file for units [first, last)
  size_t first = 0, last = 0;
  MemoryFilePtr fresh;          // result: a file
  bool refused = false;         // result: there is no file for this request
};

}  // namespace kvcachefs
