// Nodes that were evicted, remembered for a while: first in, first forgotten. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "store/evict/key_index.h"
#include "store/evict/tree_policy.h"

namespace kvcachefs::evict {

class Ghosts {
 public:
  size_t size() const { return live_; }
  // Replaces one of the same key.
  void put(const Ghost& ghost);
  std::optional<Ghost> take(UnitKey key);
  bool contains(UnitKey key) const { return index_.find(key, key_of()) != kNoSlot; }
  // The oldest goes while there are more than `limit`, or the list is long with holes that were left by take(); at most
  // `most` of them a call.
  template <class Forgotten>
  void shrink(size_t limit, size_t most, const Forgotten& forgotten) {
    for (; most > 0 && (live_ > limit || ring_.size() > 2 * limit + 64); --most) {
      const Ghost ghost = ring_.front();
      if (ghost.key.valid()) {
        index_.erase(ghost.key, key_of());
        --live_;
      }
      ring_.pop_front();
      ++first_;
      if (ghost.key.valid()) forgotten(ghost);
    }
  }
  // All, in pieces: entry `at` of slots(), which is no ghost if its key is not valid. Entries shift as the oldest go.
  size_t slots() const { return ring_.size(); }
  const Ghost& slot(size_t at) const { return ring_[at]; }
  size_t memory_bytes() const { return index_.memory_bytes() + ring_.size() * sizeof(Ghost); }
  static constexpr double kBytes = sizeof(Ghost) + 8;

 private:
  struct KeyOf {
    const Ghosts* ghosts;
    UnitKey operator()(uint32_t number) const { return ghosts->ring_[uint32_t{number - ghosts->first_}].key; }
  };
  KeyOf key_of() const { return {this}; }

  std::deque<Ghost> ring_;
  uint32_t first_ = 0;  // number of the first entry; numbers wrap
  size_t live_ = 0;
  KeyIndex index_;  // key -> number
};

inline void Ghosts::put(const Ghost& ghost) {
  take(ghost.key);
  ring_.push_back(ghost);
  uint32_t number = first_ + static_cast<uint32_t>(ring_.size() - 1);
  if (number == kNoSlot) {  // this number means "none": left out
    ring_.back().key = {};
    ring_.push_back(ghost);
    ++number;
  }
  index_.insert(ghost.key, number, key_of());
  ++live_;
}

inline std::optional<Ghost> Ghosts::take(UnitKey key) {
  const uint32_t number = index_.find(key, key_of());
  if (number == kNoSlot) return std::nullopt;
  Ghost& slot = ring_[uint32_t{number - first_}];
  const Ghost ghost = slot;
  index_.erase(key, key_of());
  slot.key = {};
  --live_;
  return ghost;
}

}  // namespace kvcachefs::evict
