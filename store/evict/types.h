// Value types of this room's calls.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvcachefs::evict {

// One unit of eviction: all objects that carry the same content hash for one model (ranks, layers, the sidecar). 0: none.
struct UnitKey {
  uint64_t value = 0;
  constexpr bool valid() const { return value != 0; }
  auto operator<=>(const UnitKey&) const = default;
};

// The names of one model, without rank and layer. Traffic of different models is learned separately.
struct StemKey {
  uint64_t value = 0;
  auto operator<=>(const StemKey&) const = default;
};

// Milliseconds of any one clock of the caller. It may stand still or step back: then time stands still.
struct TimeMs {
  int64_t value = 0;
  auto operator<=>(const TimeMs&) const = default;
};

constexpr uint64_t mix_key(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

}  // namespace kvcachefs::evict

template <>
struct std::hash<kvcachefs::evict::UnitKey> {
  size_t operator()(kvcachefs::evict::UnitKey key) const noexcept {
    return static_cast<size_t>(kvcachefs::evict::mix_key(key.value));
  }
};
template <>
struct std::hash<kvcachefs::evict::StemKey> {
  size_t operator()(kvcachefs::evict::StemKey key) const noexcept {
    return static_cast<size_t>(kvcachefs::evict::mix_key(key.value));
  }
};
