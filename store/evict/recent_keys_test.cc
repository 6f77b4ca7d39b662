#include "store/evict/recent_keys.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvcachefs::evict {
namespace recent_keys_test {

struct Entry {
  UnitKey key;
  uint64_t value = 0;
};

TEST(RecentKeys, UsedEntriesStay) {
  constexpr uint64_t kUsed = 7, kMost = 100;
  RecentKeys<Entry> keys;
  for (uint64_t number = 1; number <= 10'000; ++number) {
    keys.put({{number}, number});
    keys.shrink(kMost, 2, [&](const Entry& forgotten) { EXPECT_NE(forgotten.key.value, kUsed); });
    ASSERT_LE(keys.size(), kMost);
    if (number < kUsed) continue;
    Entry* const used = keys.use({kUsed});
    ASSERT_NE(used, nullptr) << number;
    ASSERT_EQ(used->key.value, kUsed);
    ASSERT_EQ(used->value, number);
    ++used->value;  // what a caller changes stays as well
  }
  EXPECT_EQ(keys.use({9'000}), nullptr);
  EXPECT_TRUE(keys.contains({10'000}));
  EXPECT_LE(keys.slots(), 2 * kMost + 66);
}

TEST(RecentKeys, ATakenEntryIsGone) {
  RecentKeys<Entry> keys;
  keys.put({{1}, 10});
  EXPECT_EQ(keys.take({1})->value, 10u);
  EXPECT_FALSE(keys.take({1}));
  EXPECT_EQ(keys.use({1}), nullptr);
  EXPECT_EQ(keys.size(), 0u);
}

}  // namespace recent_keys_test
}  // namespace kvcachefs::evict
