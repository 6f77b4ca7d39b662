// Private to the files that seal and spill, and to those that start and stop the lanes.
#pragma once

#include "store/store_impl.h"

namespace kvcachefs {

inline constexpr uint64_t kWriteBytes = 4 * kMiB;          // one request to the volume
inline constexpr uint64_t kMaxSpillBytes = 64 * kMiB;      // given back in one go under memory pressure

// The pack extent a lane appends to. One writer: the lane.
struct StoreImpl::PackTarget {
  ExtentId extent;
  FilePtr file;
  uint64_t next_offset = 0;
  std::vector<ExtentId> closed;  // full, with bodies that are not committed yet
  std::optional<Error> no_solo, no_pack;  // of this batch: no such file could be made for want of inodes or descriptors
  std::vector<std::pair<FilePtr, uint64_t>> uncut;  // of these: still of the size they were made with, and their ends
};

}  // namespace kvcachefs
