// The stems of recently used names, by object. Bounded: two generations; the older one is erased bit by bit while the younger one
// fills, so that no call takes long and used entries stay.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include "store/base/types.h"
#include "store/chain/stream.h"

namespace kvcachefs {

// Not thread-safe.
class StemMemory {
 public:
  explicit StemMemory(size_t max_stems = 200'000) : generation_size_(max_stems / 2) {}

  void remember(ObjectId id, NameStem stem) {
    if (young_.size() >= generation_size_ && !young_.contains(id)) {
      std::swap(dying_, old_);  // it is empty by now
      std::swap(old_, young_);
    }
    young_.insert_or_assign(id, stem);
    old_.erase(id);
    for (int i = 0; i < 2 && !dying_.empty(); ++i) dying_.erase(dying_.begin());
  }
  std::optional<NameStem> find(ObjectId id) {
    if (auto found = young_.find(id); found != young_.end()) return found->second;
    auto found = old_.find(id);
    if (found == old_.end()) return std::nullopt;
    const NameStem stem = found->second;
    remember(id, stem);
    return stem;
  }
  void erase(ObjectId id) {
    young_.erase(id);
    old_.erase(id);
  }
  size_t size() const { return young_.size() + old_.size(); }

 private:
  using Stems = std::unordered_map<ObjectId, NameStem>;
  size_t generation_size_;
  Stems young_, old_;
  Stems dying_;  // no longer searched: freeing all of it at once would take long
};

}  // namespace kvcachefs
