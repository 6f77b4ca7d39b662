// Finds the slot of a key. The keys themselves lie with their owner, which hands in a way to look at them. Open addressing in
// shards that grow by themselves: an insertion moves a 4096th of the entries at most. 6 to 9 bytes an entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "store/evict/types.h"

namespace kvcachefs::evict {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

class KeyIndex {
 public:
  // `key_of(slot)` is the UnitKey of a slot that was inserted.
  template <class KeyOf>
  uint32_t find(UnitKey key, const KeyOf& key_of) const {
    const Hashed h = hashed(key);
    const Shard& shard = shards_[h.shard];
    if (shard.slots.empty()) return kNoSlot;
    for (size_t at = shard.home(h.place); shard.tags[at] != 0; at = shard.next(at))
      if (shard.tags[at] == h.tag && key_of(shard.slots[at]) == key) return shard.slots[at];
    return kNoSlot;
  }
  // The key is not in it yet.
  template <class KeyOf>
  void insert(UnitKey key, uint32_t slot, const KeyOf& key_of) {
    const Hashed h = hashed(key);
    Shard& shard = shards_[h.shard];
    if ((shard.used + 1) * 8 > shard.slots.size() * 7) grow(shard, key_of);
    shard.put(h, slot);
    ++shard.used;
  }
  template <class KeyOf>
  void erase(UnitKey key, const KeyOf& key_of) {
    const Hashed h = hashed(key);
    Shard& shard = shards_[h.shard];
    if (shard.slots.empty()) return;
    size_t at = shard.home(h.place);
    for (; shard.tags[at] == 0 || shard.tags[at] != h.tag || key_of(shard.slots[at]) != key; at = shard.next(at))
      if (shard.tags[at] == 0) return;
    --shard.used;
    // What follows moves up, so that no search ends too early.
    for (size_t next = shard.next(at); shard.tags[next] != 0; next = shard.next(next)) {
      const size_t home = shard.home(hashed(key_of(shard.slots[next])).place);
      if (shard.distance(home, next) >= shard.distance(at, next)) {
        shard.tags[at] = shard.tags[next];
        shard.slots[at] = shard.slots[next];
        at = next;
      }
    }
    shard.tags[at] = 0;
  }
  size_t memory_bytes() const {
    size_t bytes = sizeof(*this);
    for (const Shard& shard : shards_) bytes += shard.slots.capacity() * sizeof(uint32_t) + shard.tags.capacity();
    return bytes;
  }

 private:
  static constexpr int kShardBits = 12;
  struct Hashed {
    uint32_t shard = 0;
    uint32_t place = 0;
    uint8_t tag = 0;  // never 0
  };
  struct Shard {
    std::vector<uint32_t> slots;
    std::vector<uint8_t> tags;  // 0: empty
    uint32_t used = 0;

    size_t home(uint32_t place) const { return static_cast<size_t>((uint64_t{place} * slots.size()) >> 32); }
    size_t next(size_t at) const { return at + 1 == slots.size() ? 0 : at + 1; }
    size_t distance(size_t from, size_t to) const { return to >= from ? to - from : to + slots.size() - from; }
    void put(const Hashed& h, uint32_t slot) {
      size_t at = home(h.place);
      while (tags[at] != 0) at = next(at);
      tags[at] = h.tag;
      slots[at] = slot;
    }
  };
  static Hashed hashed(UnitKey key) {
    const uint64_t h = mix_key(key.value + 0x9e3779b97f4a7c15ULL);
    return {static_cast<uint32_t>(h & ((1u << kShardBits) - 1)), static_cast<uint32_t>(h >> 32),
            static_cast<uint8_t>(((h >> kShardBits) & 0xff) | 1)};
  }
  template <class KeyOf>
  static void grow(Shard& shard, const KeyOf& key_of) {
    Shard larger;
    const size_t size = shard.slots.size() + shard.slots.size() / 3 + 4;
    larger.slots.assign(size, kNoSlot);
    larger.tags.assign(size, 0);
    larger.used = shard.used;
    for (size_t at = 0; at < shard.slots.size(); ++at)
      if (shard.tags[at] != 0) larger.put(hashed(key_of(shard.slots[at])), shard.slots[at]);
    std::swap(shard, larger);
  }

  std::vector<Shard> shards_ = std::vector<Shard>(size_t{1} << kShardBits);
};

}  // namespace kvcachefs::evict
