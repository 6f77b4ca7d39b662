// Which ranges of extents the records of a replay have named. Extents are append-only, so a range is named for one body, once.
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "store/base/types.h"

namespace kvcachefs {

class TakenPlaces {
 public:
  // False, and nothing is taken, if the range or a part of it is taken, or the extent is known as one of another kind. A file of
  // its own (solo, raw) is taken as a whole.
  bool take(const Place& place);
  // What take() took just now.
  void give_back(const Place& place);

 private:
  struct Extent {
    PlaceKind kind = PlaceKind::kNone;
    std::map<uint64_t, uint64_t> taken;  // of a pack: begin to end; what touches is one range
  };
  std::unordered_map<ExtentId, Extent> extents_;
};

}  // namespace kvcachefs
