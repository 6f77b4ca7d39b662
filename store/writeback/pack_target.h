// The pack extent that a lane appends to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/result.h"
#include "store/base/types.h"
#include "store/base/units.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// How large a pack becomes where holes cannot be punched: it comes back as a whole, after all in it died, so that a small part of what the node
// may use has to do, or all of that could be dead ranges of a pack that is being written.
constexpr uint64_t unpunched_pack_bytes(uint64_t own_limit_bytes, uint64_t extent_bytes) {
  constexpr uint64_t kPart = 32, kLeastBytes = 4 * kMiB;
  return std::min(extent_bytes, std::max(own_limit_bytes / kPart, kLeastBytes));
}

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
