// How much the indexes of peers may grow: they lie on the volume, mostly, and are made durable now and then. Their growth is claimed first, and set
// aside until then, although no client stores anything by it; so it is kept small.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "store/base/units.h"

namespace kvcachefs {

struct IndexRoom {
  uint64_t claimed_bytes = UINT64_MAX;   // part of the growth that is claimed; the rest waits a little
  uint64_t capacity_bytes = UINT64_MAX;  // of the volume, if this node is held to any
  bool is_short = false;                 // some node lacks room
  bool may_get_more = true;              // more of the growth may be claimed before long
  bool evicts = true;                    // whether this node evicts
  // Reserves room for a copy of an index out of the unused claim beside that; false: there is less. Empty: there is always enough. release() undoes it.
  std::function<bool(uint64_t bytes)> reserve = {};
  std::function<void(uint64_t bytes)> release = {};
};

// Less growth than this is not worth a sync of its own.
inline constexpr uint64_t kLeastGrowthBytes = 64 * kKiB;
// How much each of `nodes` sets aside for the indexes of all its peers: all together a sixteenth of the capacity; where room is lacking, a quarter of that.
constexpr uint64_t most_growth_bytes(const IndexRoom& room, size_t nodes) {
  constexpr uint64_t kPart = 16, kShortPart = 64;
  return std::max(kLeastGrowthBytes, room.capacity_bytes / (room.is_short ? kShortPart : kPart) / nodes);
}
// The unused part of such an index is given back if it is more than this.
constexpr uint64_t least_given_back_bytes(uint64_t capacity_bytes, size_t nodes) {
  constexpr uint64_t kPart = 32;
  return std::max(4 * kLeastGrowthBytes, capacity_bytes / kPart / nodes);
}

}  // namespace kvcachefs
