// Content that is a function of (name, offset): any range of any chunk can be written and checked without keeping a
// copy. Every 8-byte word differs from its neighbours and from the same word of another name, so a misplaced, stale or
// foreign range is found as surely as a flipped bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvcachefs {

// A well-mixed function of its input (a bijection on 64 bits).
uint64_t mix64(uint64_t value);
uint64_t hash_name(std::string_view name);

class Payload {
 public:
  explicit Payload(uint64_t seed) : seed_(seed) {}

  // Fills `out` with the bytes [offset, offset + out.size()) of the content.
  void fill(std::span<std::byte> out, uint64_t offset = 0) const;
  // The offset of the first wrong byte of `bytes`, which lie at `offset` of the content; none if all are right.
  std::optional<uint64_t> first_mismatch(std::span<const std::byte> bytes, uint64_t offset = 0) const;
  // Compares eight words spread over the content, both ends among them: cheap enough for a timed loop, but no proof.
  bool sample_matches(std::span<const std::byte> bytes) const;

 private:
  uint64_t word(uint64_t index) const;
  std::byte byte_at(uint64_t offset) const;

  uint64_t seed_;
};

}  // namespace kvcachefs
