// Names that a replay keeps back, by what they lead to and by where they are. Each call takes time that does not depend on how
// many there are. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/records.h"

namespace kvcachefs {

class NamesLeftOut {
 public:
  // A name that an object was to have. There is none at that place.
  void add(const NameRecord& name);
  // The place is spoken for anew. Whether an object was to have it.
  bool forget(ObjectId parent, std::string_view name);
  bool has(ObjectId child) const { return by_child_.contains(child); }
  // All of an object, which are forgotten.
  std::vector<NameRecord> take(ObjectId child);

  // Steps taken so far: what they cost, for tests.
  uint64_t steps() const { return steps_; }

 private:
  using Spot = std::pair<ObjectId, std::string>;
  struct HashSpot {
    size_t operator()(const Spot& spot) const noexcept {
      return std::hash<ObjectId>{}(spot.first) * 31 + std::hash<std::string>{}(spot.second);
    }
  };
  std::unordered_map<Spot, ObjectId, HashSpot> by_spot_;
  std::unordered_map<ObjectId, std::set<Spot>> by_child_;
  uint64_t steps_ = 0;
};

}  // namespace kvcachefs
