// The pack extent that a lane appends to.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/result.h"
#include "store/base/types.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// One writer: the lane.
struct PackTarget {
  ExtentId extent;
  FilePtr file;
  uint64_t next_offset = 0;
  std::vector<ExtentId> closed;  // full, with bodies that are not committed yet
  std::optional<Error> no_solo, no_pack;  // of this batch: no such file could be made for want of inodes or descriptors
  std::vector<std::pair<FilePtr, uint64_t>> uncut;  // of these: still of the size they were made with, and their ends
};

}  // namespace kvcachefs
