// What a request lacks of a memory file for the body, and what it was given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/memory/memory_file.h"

namespace kvcachefs {

struct FileRequest {
  bool wanted = false;          // something is lacking:
  uint64_t bytes = 0;           // ... a file for so many, or
  MemoryFilePtr grows;          // ... pages for these units of this one
  size_t first = 0, last = 0;
  MemoryFilePtr fresh;          // got: a file
  bool refused = false;         // got: there is none for this request
};

}  // namespace kvcachefs
