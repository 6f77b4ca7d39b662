#include "tools/load/slot.h"

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "tools/load/payload.h"

namespace kvcachefs {
namespace slot_test {

TEST(SlotPool, HoldsAllWhereMemoryAllows) {
  const auto pool = SlotPool::create(10000, 5, 1, kMiB);
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->size(), 5u);
  EXPECT_TRUE(pool->whole(5));
  EXPECT_FALSE(pool->whole(6));
}

TEST(SlotPool, IsBoundedButNeverBelowItsMinimum) {
  EXPECT_EQ(SlotPool::create(kMiB, 100, 1, 8 * kMiB)->size(), 8u);
  EXPECT_EQ(SlotPool::create(kMiB, 100, 4, 0)->size(), 4u);
}

TEST(SlotPool, ChecksEverySlotAndClearsThem) {
  auto pool = SlotPool::create(9000, 3, 1, kMiB);
  const auto names = chunk_chain(AccessStyle::kRead, 1, 0, 3);
  for (size_t i = 0; i < 3; ++i) {
    Payload(names[i].payload_seed).fill(pool->at(i).buffer().first(9000));
    pool->at(i).hold(names[i], 9000);
  }
  pool->at(2).buffer()[8999] ^= std::byte{1};
  const Status wrong = pool->verify_and_clear(2);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find(names[2].path), std::string::npos);
  EXPECT_TRUE(pool->verify_and_clear(2)) << "cleared slots hold nothing to be wrong";
}

}  // namespace slot_test
}  // namespace kvcachefs
