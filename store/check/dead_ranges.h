// Blocks of packs that no record names: the daemon died between giving a range up and punching it, or before it journaled
// what it had written there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/base/result.h"
#include "store/check/body_check.h"
#include "store/check/offline_node.h"
#include "store/extent/pack_gaps.h"

namespace kvcachefs {

struct PackWithDeadRanges {
  ExtentId extent;
  uint64_t allocated_bytes = 0;
  uint64_t dead_bytes = 0;        // of blocks; little may be the file system's own
  std::vector<ByteRange> ranges;  // which hold them, if not all of them
};

// `bodies` by extent and offset. One stat for each pack; packs that are missing are passed over.
Result<std::vector<PackWithDeadRanges>> find_dead_ranges(const OfflineNode& node, std::span<const BodyRef> bodies);

// Punches them. How many bytes came back.
Result<uint64_t> give_back(const OfflineNode& node, const PackWithDeadRanges& pack);

}  // namespace kvcachefs
