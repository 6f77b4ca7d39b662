#include "store/base/checksum.h"

#include <array>

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // redefines XXH3_64bits* to the dispatched ones
#endif

#include "store/base/units.h"

namespace kvcachefs {

uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t checksum_of_zeros(size_t length) {
  alignas(64) static constexpr std::array<std::byte, kUnitBytes> kZeros{};
  static const uint64_t of_unit = checksum(std::span(kZeros));
  return length >= kUnitBytes ? of_unit : checksum(std::span(kZeros).first(length));
}

Hasher::Hasher() : state_(XXH3_createState()) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }
Hasher::~Hasher() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}
uint64_t Hasher::digest() const { return XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)); }

}  // namespace kvcachefs
