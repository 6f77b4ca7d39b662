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

// The size of a pack on a volume that cannot punch holes. Its space comes back as a whole, after all its bodies died; so it may be only a
// small part of what the node may use, or all of that could be dead ranges of one pack that is being written.
constexpr uint64_t unpunched_pack_bytes(uint64_t own_limit_bytes, uint64_t extent_bytes) {
  constexpr uint64_t kPart = 32, kLeastBytes = 4 * kMiB;
  return std::min(extent_bytes, std::max(own_limit_bytes / kPart, kLeastBytes));
}

// Has one writer: the lane.
struct PackTarget {
  ExtentId extent;
  FilePtr file;
  uint64_t next_offset = 0;
  std::vector<ExtentId> closed;  // full packs with bodies that are not committed yet
  std::optional<Error> no_solo, no_pack;  // in this batch: no such file could be made for want of inodes or descriptors
  std::vector<std::pair<FilePtr, uint64_t>> uncut;  // closed packs that still have the size they were made with, and their ends
};

}  // namespace kvcachefs
