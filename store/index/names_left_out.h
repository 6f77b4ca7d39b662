// Names that a replay holds back, found by the child they lead to and by their place (parent and name). The cost of a call does not
// depend on how many names are held. One thread.
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
  // Holds back `name`. No name is held for that place yet.
  void add(const NameRecord& name);
  // A later record decides about the place: drops the name held for it. Returns whether there was one.
  bool forget(ObjectId parent, std::string_view name);
  bool has(ObjectId child) const { return by_child_.contains(child); }
  // Returns all names held for an object, and forgets them.
  std::vector<NameRecord> take(ObjectId child);

  // Steps taken so far, a measure of the cost; for tests.
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
