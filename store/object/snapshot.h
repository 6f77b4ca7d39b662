// A body as it was at one moment.
#pragma once

#include <cstdint>
#include <vector>

#include "store/object/object.h"

namespace kvcachefs {

// What a body was at one moment: holds its blocks, so that it can be written while the object changes.
struct Snapshot {
  ObjectPtr object;
  uint64_t size_bytes = 0;
  std::vector<Unit> units;
  Body base;
  uint64_t base_valid_bytes = 0;
  FilePtr spill;
  ExtentId spill_extent;
  std::vector<bool> spill_written;
  bool raw = false;
  uint64_t content_version = 0;
};

}  // namespace kvcachefs
