// The stems of recently used names, by object: a table of fixed size. An object has its place in one of the table's sets, and a new entry takes the
// place of the one in its set that was not used for longest. So each call touches one place in RAM, and allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "store/base/types.h"
#include "store/chain/stream.h"

namespace kvcachefs {

// Not thread-safe.
class StemMemory {
 public:
  explicit StemMemory(size_t max_stems = 131'072) : sets_(std::bit_floor(std::max<size_t>(max_stems / kWays, 1))) {}

  void remember(ObjectId id, NameStem stem) {
    Set& set = set_of(id);
    const auto place = std::ranges::find(set, id, &Entry::id);
    use(set, place == set.end() ? set.end() - 1 : place) = {id, stem};
  }
  std::optional<NameStem> find(ObjectId id) {
    Set& set = set_of(id);
    const auto place = std::ranges::find(set, id, &Entry::id);
    if (!id.valid() || place == set.end()) return std::nullopt;
    return use(set, place).stem;
  }
  void erase(ObjectId id) {
    Set& set = set_of(id);
    const auto place = std::ranges::find(set, id, &Entry::id);
    if (place == set.end()) return;
    std::rotate(place, place + 1, set.end());
    set.back() = {};
  }
  size_t most() const { return sets_.size() * kWays; }

 private:
  static constexpr size_t kWays = 8;
  struct Entry {
    ObjectId id;  // invalid: free
    NameStem stem;
  };
  using Set = std::array<Entry, kWays>;  // lately used ones first
  Set& set_of(ObjectId id) { return sets_[std::hash<ObjectId>()(id) & (sets_.size() - 1)]; }
  static Entry& use(Set& set, Set::iterator place) {
    std::rotate(set.begin(), place, place + 1);
    return set.front();
  }

  std::vector<Set> sets_;
};

}  // namespace kvcachefs
