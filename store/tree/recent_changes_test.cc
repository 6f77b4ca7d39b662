#include "store/tree/recent_changes.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace recent_changes_test {

constexpr int64_t kSecond = 1'000'000'000;

ObjectId id_of(uint64_t number) { return ObjectId::make(1, 1, number); }

TEST(RecentChanges, AreKnownForTwoSeconds) {
  RecentChanges changes;
  EXPECT_FALSE(changes.has(id_of(1), 10 * kSecond));
  changes.note(id_of(1), 10 * kSecond);
  EXPECT_TRUE(changes.has(id_of(1), 11 * kSecond));
  EXPECT_FALSE(changes.has(id_of(2), 11 * kSecond));
  changes.note(id_of(1), 11 * kSecond);
  changes.note(id_of(2), 12 * kSecond + 1);  // drops the first note
  EXPECT_TRUE(changes.has(id_of(1), 12 * kSecond + 2));
  EXPECT_FALSE(changes.has(id_of(1), 13 * kSecond));
  EXPECT_EQ(changes.until_ns(id_of(1)), 13 * kSecond);
  EXPECT_LT(changes.until_ns(id_of(3)), 0);
}

TEST(RecentChanges, OrForAsLongAsIsWanted) {
  RecentChanges changes(10 * kSecond);
  changes.note(id_of(1), 10 * kSecond);
  EXPECT_TRUE(changes.has(id_of(1), 19 * kSecond));
  EXPECT_FALSE(changes.has(id_of(1), 20 * kSecond));
  EXPECT_EQ(changes.until_ns(id_of(1)), 20 * kSecond);
}

TEST(RecentChanges, WhereThereAreTooManyNoneIsMissed) {
  RecentChanges changes;
  for (uint64_t i = 1; i <= RecentChanges::kMost + 1; ++i) changes.note(id_of(i), 10 * kSecond + static_cast<int64_t>(i));
  EXPECT_TRUE(changes.has(id_of(1), 11 * kSecond));
  EXPECT_TRUE(changes.has(id_of(RecentChanges::kMost + 1), 11 * kSecond));
  EXPECT_FALSE(changes.has(id_of(1), 13 * kSecond));
}

}  // namespace recent_changes_test
}  // namespace kvcachefs
