// Finds the slot of a key. The owner stores the keys and passes a function that reads them. Open addressing in shards that grow
// independently: an insertion moves at most a 4096th of the entries. 6 to 9 bytes an entry. Not thread-safe, not even find(), which notes the last
// keys that it found: an access asks for the same few keys several times, and each search misses the processor's cache three times.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "store/evict/types.h"

namespace kvcachefs::evict {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

class KeyIndex {
 public:
  // `key_of(slot)` returns the UnitKey of an inserted slot.
  template <class KeyOf>
  uint32_t find(UnitKey key, const KeyOf& key_of) const {
    const Hashed h = hashed(key);
    Found& found = found_[h.place % kFound];
    if (found.slot != kNoSlot && found.key == key) return found.slot;
    const Shard& shard = shards_[h.shard];
    if (shard.size == 0) return kNoSlot;
    for (size_t at = shard.home(h.place); shard.tags()[at] != 0; at = shard.next(at)) {
      if (shard.tags()[at] != h.tag || key_of(shard.slots()[at]) != key) continue;
      found = {key, shard.slots()[at]};
      return found.slot;
    }
    return kNoSlot;
  }
  // The key must not be in it yet.
  template <class KeyOf>
  void insert(UnitKey key, uint32_t slot, const KeyOf& key_of) {
    const Hashed h = hashed(key);
    Shard& shard = shards_[h.shard];
    if ((shard.used + 1) * 8 > shard.size * 7) grow(shard, key_of);
    shard.put(h, slot);
    ++shard.used;
  }
  template <class KeyOf>
  void erase(UnitKey key, const KeyOf& key_of) {
    const Hashed h = hashed(key);
    if (Found& found = found_[h.place % kFound]; found.key == key) found = {};
    Shard& shard = shards_[h.shard];
    if (shard.size == 0) return;
    uint32_t* const slots = shard.slots();
    uint8_t* const tags = shard.tags();
    size_t at = shard.home(h.place);
    for (; tags[at] == 0 || tags[at] != h.tag || key_of(slots[at]) != key; at = shard.next(at))
      if (tags[at] == 0) return;
    --shard.used;
    // Moves later entries up, so that no search ends too early.
    for (size_t next = shard.next(at); tags[next] != 0; next = shard.next(next)) {
      const size_t home = shard.home(hashed(key_of(slots[next])).place);
      if (shard.distance(home, next) >= shard.distance(at, next)) {
        tags[at] = tags[next];
        slots[at] = slots[next];
        at = next;
      }
    }
    tags[at] = 0;
  }
  size_t memory_bytes() const {
    size_t bytes = sizeof(*this);
    bytes += shards_.size() * sizeof(Shard);
    for (const Shard& shard : shards_) bytes += Shard::words(shard.size) * sizeof(uint32_t);
    return bytes;
  }

 private:
  static constexpr int kShardBits = 12;
  static constexpr size_t kFound = 32;  // the requests under way at a time
  struct Found {
    UnitKey key;
    uint32_t slot = kNoSlot;
  };
  struct Hashed {
    uint32_t shard = 0;
    uint32_t place = 0;
    uint8_t tag = 0;  // never 0
  };
  struct Shard {
    std::unique_ptr<uint32_t[]> memory;  // `size` slots, then as many tags; tag 0: empty
    uint32_t size = 0;
    uint32_t used = 0;

    static size_t words(uint32_t size) { return size + size_t{size + 3} / 4; }
    uint32_t* slots() const { return memory.get(); }
    uint8_t* tags() const { return reinterpret_cast<uint8_t*>(memory.get() + size); }
    size_t home(uint32_t place) const { return static_cast<size_t>((uint64_t{place} * size) >> 32); }
    size_t next(size_t at) const { return at + 1 == size ? 0 : at + 1; }
    size_t distance(size_t from, size_t to) const { return to >= from ? to - from : to + size - from; }
    void put(const Hashed& h, uint32_t slot) {
      size_t at = home(h.place);
      while (tags()[at] != 0) at = next(at);
      tags()[at] = h.tag;
      slots()[at] = slot;
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
    larger.size = shard.size + shard.size / 3 + 4;
    larger.memory = std::make_unique<uint32_t[]>(Shard::words(larger.size));
    larger.used = shard.used;
    for (size_t at = 0; at < shard.size; ++at)
      if (shard.tags()[at] != 0) larger.put(hashed(key_of(shard.slots()[at])), shard.slots()[at]);
    std::swap(shard, larger);
  }

  std::vector<Shard> shards_ = std::vector<Shard>(size_t{1} << kShardBits);
  mutable std::array<Found, kFound> found_{};
};

}  // namespace kvcachefs::evict
