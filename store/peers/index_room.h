// What the indexes of peers may grow by: they lie on the volume, mostly, and are made durable now and then. What they grow by is claimed first, and set
// aside until then, although nobody stores anything; so it is kept small.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "store/base/units.h"

namespace kvcachefs {

struct IndexRoom {
  uint64_t claimed_bytes = UINT64_MAX;   // of what they grow by; the rest waits a little
  uint64_t capacity_bytes = UINT64_MAX;  // of the volume, if this node is held to any
  bool is_short = false;                 // somebody lacks room
  bool may_get_more = true;              // of what is not claimed some may be before long
  bool evicts = true;                    // this node
  // For a copy of one of them what is not used of the claim beside that; false: it is less. Empty: there is enough. What was reserved is released.
  std::function<bool(uint64_t bytes)> reserve = {};
  std::function<void(uint64_t bytes)> release = {};
};

// Less is not worth a sync of its own.
inline constexpr uint64_t kLeastGrowthBytes = 64 * kKiB;
// One of `nodes` sets so much aside for the indexes of all its peers: together a sixteenth of the capacity; where room is lacking, a quarter of that.
constexpr uint64_t most_growth_bytes(const IndexRoom& room, size_t nodes) {
  constexpr uint64_t kPart = 16, kShortPart = 64;
  return std::max(kLeastGrowthBytes, room.capacity_bytes / (room.is_short ? kShortPart : kPart) / nodes);
}
// What is unused of one of these indexes is given back where it is more.
constexpr uint64_t least_given_back_bytes(uint64_t capacity_bytes, size_t nodes) {
  constexpr uint64_t kPart = 32;
  return std::max(4 * kLeastGrowthBytes, capacity_bytes / kPart / nodes);
}

}  // namespace kvcachefs
