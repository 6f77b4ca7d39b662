#include "store/base/descriptors.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace descriptors_test {

TEST(DescriptorShares, LeaveSomeToOthersFromTheLeastLimitOn) {
  constexpr uint64_t kOfAMount = 20;
  for (const uint64_t limit : {64u, 110u, 256u, 1024u, 4096u, 1u << 20}) {
    const DescriptorShares shares = descriptor_shares(limit);
    EXPECT_LT(kOfAMount + shares.memory_files + shares.made_extents + shares.open_extents, limit) << limit;
  }
  EXPECT_GT(descriptor_shares(1 << 20).made_extents, 200'000u) << "no limit to speak of";
}

TEST(DescriptorShares, AreThereEvenWhereThereIsNothingToShare) {
  const DescriptorShares shares = descriptor_shares(10);
  EXPECT_EQ(shares.memory_files, 0u);
  EXPECT_GT(shares.made_extents, 6u) << "four spare ones, and a pack for each lane";
  EXPECT_GT(shares.open_extents, 0u);
}

}  // namespace descriptors_test
}  // namespace kvcachefs
