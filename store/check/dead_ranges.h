// Finds blocks of packs that no record names: the daemon died after it gave a range up and before it punched it, or before it
// journaled the bodies that it had written there.
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
  uint64_t dead_bytes = 0;        // of blocks; a small part may be the file system's own
  std::vector<ByteRange> ranges;  // the ranges that hold them, if not all of them
};

// `bodies` must be sorted by extent and offset. Takes one stat for each pack; skips packs that are missing.
Result<std::vector<PackWithDeadRanges>> find_dead_ranges(const OfflineNode& node, std::span<const BodyRef> bodies);

// Punches the ranges. Returns how many bytes came back.
Result<uint64_t> give_back(const OfflineNode& node, const PackWithDeadRanges& pack);

}  // namespace kvcachefs
