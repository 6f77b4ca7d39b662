// The sparse bytes of one simulated file. A plain value: copies share blocks until one of them writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "store/base/units.h"

namespace kvcachefs {

class SimContent {
 public:
  uint64_t size() const { return size_; }
  uint64_t allocated_bytes() const { return blocks_.size() * kBlockBytes; }
  // Bytes that writing or allocating the range would add to allocated_bytes.
  uint64_t missing_bytes(uint64_t offset, uint64_t length) const;

  size_t read(std::span<std::byte> into, uint64_t offset) const;  // fewer bytes only at the end
  void write(uint64_t offset, std::span<const std::byte> data);
  void truncate(uint64_t size);
  void allocate(uint64_t offset, uint64_t length);  // reserves blocks, extends the size
  void punch(uint64_t offset, uint64_t length);     // frees whole blocks, zeroes the rest; the size stays
  void flip(uint64_t offset, std::byte xor_with);   // `offset` must be below the size

  // As SEEK_DATA and SEEK_HOLE, in whole blocks; reserved blocks count as holes. nullopt past the end.
  std::optional<uint64_t> next_data(uint64_t offset) const;
  std::optional<uint64_t> next_hole(uint64_t offset) const;

 private:
  using Block = std::array<std::byte, kBlockBytes>;
  Block& writable_block(uint64_t index);
  void zero_within(uint64_t index, size_t from, size_t to);

  std::map<uint64_t, std::shared_ptr<Block>> blocks_;  // by index; null: reserved, reads as zeros
  uint64_t size_ = 0;
};

}  // namespace kvcachefs
