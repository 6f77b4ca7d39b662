// Ranges of extents that the records of a replay have named. Extents are append-only, so a range is named once, for one body.
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "store/base/types.h"

namespace kvcachefs {

class TakenPlaces {
 public:
  // Marks a range as taken. Returns false and takes nothing if any part of it is taken, or if the extent is known to be of another kind.
  // A solo or raw extent is taken as a whole.
  bool take(const Place& place);
  // Undoes the last take().
  void give_back(const Place& place);

 private:
  struct Extent {
    PlaceKind kind = PlaceKind::kNone;
    std::map<uint64_t, uint64_t> taken;  // of a pack: begin -> end; adjacent ranges are merged
  };
  std::unordered_map<ExtentId, Extent> extents_;
};

}  // namespace kvcachefs
