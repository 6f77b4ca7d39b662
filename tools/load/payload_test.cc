#include "tools/load/payload.h"

#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace payload_test {

std::vector<std::byte> content(uint64_t seed, size_t size, uint64_t offset = 0) {
  std::vector<std::byte> bytes(size);
  Payload(seed).fill(bytes, offset);
  return bytes;
}

TEST(Payload, AnyRangeEqualsThatRangeOfTheWhole) {
  const auto whole = content(7, 10000);
  for (uint64_t offset : {0u, 1u, 7u, 8u, 4095u, 4096u, 9001u}) {
    for (size_t size : {0u, 1u, 7u, 8u, 9u, 900u}) {
      const auto part = content(7, size, offset);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(offset)))
          << offset << "+" << size;
      ASSERT_FALSE(Payload(7).first_mismatch(part, offset));
    }
  }
}

TEST(Payload, EveryFlippedByteIsFoundAtItsOffset) {
  auto bytes = content(3, 5003);
  for (size_t at = 0; at < bytes.size(); at += 13) {
    bytes[at] ^= std::byte{0x40};
    const auto found = Payload(3).first_mismatch(bytes);
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(*found, at);
    bytes[at] ^= std::byte{0x40};
  }
}

TEST(Payload, OffsetsCountFromTheContent) {
  auto bytes = content(3, 100, 4091);
  bytes[50] ^= std::byte{1};
  EXPECT_EQ(Payload(3).first_mismatch(bytes, 4091), std::optional<uint64_t>(4141));
}

TEST(Payload, ForeignAndShiftedContentIsFound) {
  const auto bytes = content(1, 4096);
  EXPECT_TRUE(Payload(2).first_mismatch(bytes).has_value());
  EXPECT_TRUE(Payload(1).first_mismatch(bytes, 4096).has_value());
  EXPECT_FALSE(Payload(2).sample_matches(bytes));
  EXPECT_TRUE(Payload(1).sample_matches(bytes));
}

TEST(Payload, SampleSeesBothEndsAndZeros) {
  auto bytes = content(9, 65536);
  bytes.front() ^= std::byte{1};
  EXPECT_FALSE(Payload(9).sample_matches(bytes));
  bytes = content(9, 65536);
  bytes.back() ^= std::byte{1};
  EXPECT_FALSE(Payload(9).sample_matches(bytes));
  EXPECT_FALSE(Payload(9).sample_matches(std::vector<std::byte>(65536)));
}

TEST(HashName, NamesDiffer) { EXPECT_NE(hash_name("a"), hash_name("b")); }

}  // namespace payload_test
}  // namespace kvcachefs
