#include "store/base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace kvcachefs {

uint64_t descriptor_limit() {
  rlimit descriptors{};
  return getrlimit(RLIMIT_NOFILE, &descriptors) == 0 ? descriptors.rlim_cur : UINT64_MAX;
}

// A mount itself uses 20 descriptors (the FUSE device, io_uring, journal, index, lock, log), and some 15 threads use one or two for a moment:
// these 40 are not shared out. An eighth of the rest stays free for users that cannot be planned: raw files, spill files, files of bodies that are
// being read.
DescriptorShares descriptor_shares(uint64_t limit) {
  constexpr uint64_t kOthers = 40;
  constexpr uint64_t kLeastMade = 16;  // includes four spares and the packs of the lanes
  constexpr uint64_t kLeastOpen = 4;
  const uint64_t shared = limit - std::min(limit, kOthers);
  return {.memory_files = shared / 2, .made_extents = std::max(shared / 4, kLeastMade), .open_extents = std::max(shared / 8, kLeastOpen)};
}

}  // namespace kvcachefs
