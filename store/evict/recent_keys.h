// Entries with a key, remembered for a while: first in, first forgotten. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "store/evict/key_index.h"

namespace kvcachefs::evict {

// Entry has a UnitKey `key`; an entry with an invalid key is a hole.
template <class Entry>
class RecentKeys {
 public:
  size_t size() const { return live_; }
  // Replaces an entry with the same key.
  void put(const Entry& entry);
  std::optional<Entry> take(UnitKey key);
  bool contains(UnitKey key) const { return index_.find(key, key_of()) != kNoSlot; }
  // The entry, which becomes the newest if it belongs to the older half; nullptr if there is none. Do not change its key. Valid until the next
  // call.
  Entry* use(UnitKey key);
  // Forgets the oldest entries while there are more than `limit`, or while the list is long with holes left by take(); at most `most` of
  // them in a call.
  template <class Forgotten>
  void shrink(size_t limit, size_t most, const Forgotten& forgotten) {
    for (; most > 0 && (live_ > limit || ring_.size() > 2 * limit + 64); --most) {
      const Entry entry = ring_.front();
      if (entry.key.valid()) {
        index_.erase(entry.key, key_of());
        --live_;
      }
      ring_.pop_front();
      ++first_;
      if (entry.key.valid()) forgotten(entry);
    }
  }
  // For visiting all entries in pieces: entry `at` of slots(), a hole if its key is invalid. Positions shift as the oldest entries go.
  size_t slots() const { return ring_.size(); }
  const Entry& slot(size_t at) const { return ring_[at]; }
  size_t memory_bytes() const { return index_.memory_bytes() + ring_.size() * sizeof(Entry); }
  static constexpr double kBytes = sizeof(Entry) + 8;

 private:
  struct KeyOf {
    const RecentKeys* of;
    UnitKey operator()(uint32_t number) const { return of->ring_[uint32_t{number - of->first_}].key; }
  };
  KeyOf key_of() const { return {this}; }

  std::deque<Entry> ring_;
  uint32_t first_ = 0;  // number of the first entry; numbers wrap
  size_t live_ = 0;
  KeyIndex index_;  // key -> number
};

template <class Entry>
void RecentKeys<Entry>::put(const Entry& entry) {
  take(entry.key);
  ring_.push_back(entry);
  uint32_t number = first_ + static_cast<uint32_t>(ring_.size() - 1);
  if (number == kNoSlot) {  // this number means "none": skip it
    ring_.back().key = {};
    ring_.push_back(entry);
    ++number;
  }
  index_.insert(entry.key, number, key_of());
  ++live_;
}

template <class Entry>
Entry* RecentKeys<Entry>::use(UnitKey key) {
  const uint32_t number = index_.find(key, key_of());
  if (number == kNoSlot) return nullptr;
  const uint32_t at = number - first_;
  if (at >= ring_.size() / 2) return &ring_[at];
  put(Entry(ring_[at]));
  return &ring_.back();
}

template <class Entry>
std::optional<Entry> RecentKeys<Entry>::take(UnitKey key) {
  const uint32_t number = index_.find(key, key_of());
  if (number == kNoSlot) return std::nullopt;
  Entry& slot = ring_[uint32_t{number - first_}];
  const Entry entry = slot;
  index_.erase(key, key_of());
  slot.key = {};
  --live_;
  return entry;
}

}  // namespace kvcachefs::evict
