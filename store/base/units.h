// Sizes: parsing and printing in the form that users write (K, M, G, T are powers of 1024), and alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr uint64_t kTiB = 1024 * kGiB;

// Alignment of everything on the volume that O_DIRECT or hole punching may touch.
inline constexpr uint64_t kBlockBytes = 4096;
// The part of a body that one checksum covers; also the unit in which bodies are held in memory.
inline constexpr uint64_t kUnitBytes = 256 * kKiB;

constexpr uint64_t align_down(uint64_t value, uint64_t alignment) { return value / alignment * alignment; }
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr uint64_t div_ceil(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

// The index of the unit that contains the byte at `offset`; and the number of a body's bytes in one unit, 0 past its end.
constexpr size_t unit_of(uint64_t offset) { return static_cast<size_t>(offset / kUnitBytes); }
constexpr uint64_t unit_length(uint64_t size_bytes, size_t index) {
  const uint64_t start = index * kUnitBytes;
  if (start >= size_bytes) return 0;
  return size_bytes - start < kUnitBytes ? size_bytes - start : kUnitBytes;
}

// "64K", "1.5G", "4096", "9m", "2TiB", "2Ti" -> bytes. Refuses anything else, including overflow, and "64MB", which is ambiguous.
Result<uint64_t> parse_size(std::string_view text);
// 10485760 -> "10M", 1536 -> "1.5K".
std::string format_size(uint64_t bytes);

}  // namespace kvcachefs
