// A volume that several nodes share, as Space sees it.
#include "store/space/space.h"

#include <gtest/gtest.h>

#include "store/base/units.h"

namespace kvcachefs {
namespace space_claim_test {

class SpaceClaimTest : public ::testing::Test {
 protected:
  void SetUp() override { space_.configure(64 * kMiB, 0); }
  Space space_;
};

TEST_F(SpaceClaimTest, NoMoreIsUsedThanIsClaimed) {
  EXPECT_EQ(space_.own_limit_bytes(), 64 * kMiB) << "a node that is alone";
  space_.set_claim(10 * kMiB);
  space_.set_live(4 * kMiB);
  EXPECT_EQ(space_.room_bytes(), 6 * kMiB);
  EXPECT_FALSE(space_.try_reserve(7 * kMiB));
  EXPECT_TRUE(space_.try_reserve(6 * kMiB));
  EXPECT_EQ(space_.limit_bytes(), 64 * kMiB) << "df shows the whole";
}

TEST_F(SpaceClaimTest, FreeIsWhatTheNodeCanComeToHave) {
  space_.set_claim(10 * kMiB);
  space_.set_live(4 * kMiB);
  space_.set_shared(20 * kMiB, 64 * kMiB, /*lone_bytes=*/0);
  EXPECT_EQ(space_.free_bytes(), 26 * kMiB);
  EXPECT_EQ(space_.own_free_bytes(), 6 * kMiB);
  space_.set_shared(20 * kMiB, 16 * kMiB, /*lone_bytes=*/0);
  EXPECT_EQ(space_.limit_bytes(), 16 * kMiB) << "another node allows less";
  EXPECT_EQ(space_.free_bytes(), 12 * kMiB);
}

TEST_F(SpaceClaimTest, ANodeThatIsAloneComesToHaveAllAndReservesNoMoreThanItClaims) {
  space_.set_claim(10 * kMiB);
  space_.set_live(4 * kMiB);
  space_.set_shared(54 * kMiB, 64 * kMiB, /*lone_bytes=*/64 * kMiB);
  EXPECT_EQ(space_.own_limit_bytes(), 64 * kMiB);
  EXPECT_EQ(space_.own_free_bytes(), 60 * kMiB) << "nothing is evicted because the claim is low";
  EXPECT_EQ(space_.room_bytes(), 6 * kMiB);
  space_.set_shared(52 * kMiB, 64 * kMiB, /*lone_bytes=*/62 * kMiB);
  EXPECT_EQ(space_.own_limit_bytes(), 62 * kMiB) << "what is left to others is made room for";
  EXPECT_EQ(space_.free_bytes(), 60 * kMiB) << "and shown as free";
}

TEST_F(SpaceClaimTest, BelowALowerLimitNothingIsReservedBeforeTheClaimIsToldAnew) {
  space_.set_claim(40 * kMiB);
  space_.set_live(10 * kMiB);
  space_.set_shared(0, 64 * kMiB, /*lone_bytes=*/0);
  space_.configure(32 * kMiB, 0);
  EXPECT_TRUE(space_.claim_sinks());
  EXPECT_FALSE(space_.try_reserve(4096)) << "the others have claims, too";
  space_.sink_claim(12 * kMiB);
  EXPECT_TRUE(space_.try_reserve(2 * kMiB));
  space_.configure(64 * kMiB, 0);
  space_.configure(64 * kMiB, 0);
  space_.set_claim(40 * kMiB);
  EXPECT_TRUE(space_.try_reserve(kMiB)) << "no limit was lowered";
  space_.set_shared(0, 64 * kMiB, /*lone_bytes=*/64 * kMiB);
  space_.configure(32 * kMiB, 0);
  EXPECT_TRUE(space_.try_reserve(kMiB)) << "a node that is alone is held to the limit only";
}

TEST_F(SpaceClaimTest, WhoCannotWaitGoesBeyondTheClaimOfANodeThatIsAlone) {
  space_.set_claim(10 * kMiB);
  space_.set_live(4 * kMiB);
  space_.set_shared(0, 64 * kMiB, /*lone_bytes=*/0);
  EXPECT_FALSE(space_.reserve_at_once(7 * kMiB)) << "others have the rest";
  EXPECT_TRUE(space_.reserve_at_once(kMiB));
  space_.set_shared(54 * kMiB, 64 * kMiB, /*lone_bytes=*/62 * kMiB);
  EXPECT_FALSE(space_.reserve_at_once(58 * kMiB));
  EXPECT_TRUE(space_.reserve_at_once(57 * kMiB));
  EXPECT_EQ(space_.room_bytes(), 0u);
}

TEST_F(SpaceClaimTest, WhatComesBackOfAClaimThatSinksIsNotUsedAnew) {
  space_.set_claim(10 * kMiB);
  space_.set_live(10 * kMiB);
  space_.set_shared(0, 64 * kMiB, /*lone_bytes=*/0);
  EXPECT_EQ(space_.lower_claim(6 * kMiB), 10 * kMiB) << "it is used";
  space_.sink_claim(6 * kMiB);
  EXPECT_TRUE(space_.claim_sinks());
  space_.set_live(8 * kMiB);
  EXPECT_FALSE(space_.try_reserve(4096));
  EXPECT_EQ(space_.own_free_bytes(), 0u);
  EXPECT_EQ(space_.lower_claim(6 * kMiB), 8 * kMiB) << "what came back is given up";
  space_.set_live(5 * kMiB);
  EXPECT_TRUE(space_.try_reserve(kMiB));
  EXPECT_FALSE(space_.try_reserve(4096));
  space_.set_claim(8 * kMiB);
  EXPECT_FALSE(space_.claim_sinks());
  EXPECT_TRUE(space_.try_reserve(2 * kMiB));
}

TEST_F(SpaceClaimTest, NothingIsReservedBehindTheEndOfTheClaim) {
  int64_t now_ns = 100;
  space_.set_claim_clock([&now_ns] { return now_ns; });
  space_.set_claim(10 * kMiB);
  space_.set_shared(0, 64 * kMiB, /*lone_bytes=*/0);
  space_.set_live(4 * kMiB);
  space_.hold_claim_until(200);
  ASSERT_TRUE(space_.try_reserve(kMiB));
  now_ns = 201;
  EXPECT_TRUE(space_.claim_has_lapsed());
  EXPECT_EQ(space_.room_bytes(), 0u);
  EXPECT_FALSE(space_.try_reserve(1));
  EXPECT_EQ(space_.take_lacking_bytes(), 0u) << "it is not more that is needed";
  EXPECT_EQ(space_.own_free_bytes(), 5 * kMiB) << "and nothing is evicted for that";
  EXPECT_EQ(space_.lower_claim(0), 5 * kMiB);
  space_.hold_claim_until(300);
  EXPECT_FALSE(space_.try_reserve(1)) << "it was not claimed anew";
  space_.set_claim(10 * kMiB);
  EXPECT_TRUE(space_.try_reserve(kMiB));
  space_.release(2 * kMiB);
}

TEST_F(SpaceClaimTest, WhatEarlierLivesLeftAndStaysIsWishedFor) {
  space_.set_live(4 * kMiB);
  space_.set_orphaned(3 * kMiB);
  EXPECT_EQ(space_.used_soon_bytes(), 4 * kMiB) << "it comes back by itself";
  space_.set_dead_that_stays(2 * kMiB);
  EXPECT_EQ(space_.used_soon_bytes(), 6 * kMiB);
}

TEST_F(SpaceClaimTest, AClaimIsNotLoweredBelowWhatIsUsed) {
  space_.set_live(4 * kMiB);
  space_.set_dead(2 * kMiB);
  ASSERT_TRUE(space_.try_reserve(kMiB));
  EXPECT_EQ(space_.used_bytes(), 7 * kMiB);
  EXPECT_EQ(space_.used_soon_bytes(), 5 * kMiB);
  space_.set_dead_that_stays(kMiB);
  EXPECT_EQ(space_.used_soon_bytes(), 6 * kMiB);
  EXPECT_EQ(space_.lower_claim(5 * kMiB), 7 * kMiB);
  EXPECT_EQ(space_.room_bytes(), 0u);
  space_.gave_back(0);
  EXPECT_EQ(space_.used_soon_bytes(), 5 * kMiB) << "what is not there does not stay";
  EXPECT_EQ(space_.lower_claim(5 * kMiB), 5 * kMiB);
}

// Bytes that can wait for the claim do not raise it by themselves, and no call waits for them.
TEST_F(SpaceClaimTest, WhatIsWantedHoldsNoClaim) {
  space_.set_claim(10 * kMiB);
  space_.set_shared(0, 64 * kMiB, /*lone_bytes=*/0);
  space_.set_overhead(2 * kMiB, kMiB, 4 * kMiB);
  EXPECT_EQ(space_.room_bytes(), 7 * kMiB);
  EXPECT_EQ(space_.own_free_bytes(), 3 * kMiB) << "it is evicted for";
  EXPECT_EQ(space_.used_bytes(), 3 * kMiB);
  EXPECT_EQ(space_.used_soon_bytes(), 7 * kMiB) << "it is wished for";
  space_.set_overhead(2 * kMiB, kMiB, 4 * kMiB, /*kept=*/true);
  EXPECT_EQ(space_.room_bytes(), 3 * kMiB);
  EXPECT_FALSE(space_.try_reserve(4 * kMiB));
  space_.set_overhead(2 * kMiB, kMiB, 40 * kMiB);
  EXPECT_EQ(space_.room_bytes(), 7 * kMiB);
  EXPECT_EQ(space_.lower_claim(0), 3 * kMiB);
}

TEST_F(SpaceClaimTest, LittleLeftOfTheClaimIsToldOnceAndSoIsACallThatFoundNone) {
  int told = 0;
  space_.set_claim_low_callback([&told] { ++told; });
  space_.set_claim(10 * kMiB);
  space_.tell_claim_below(3 * kMiB);
  ASSERT_TRUE(space_.try_reserve(6 * kMiB));
  EXPECT_EQ(told, 0);
  ASSERT_TRUE(space_.try_reserve(2 * kMiB));
  ASSERT_TRUE(space_.try_reserve(kMiB));
  EXPECT_EQ(told, 1);
  space_.tell_claim_below(3 * kMiB);
  EXPECT_FALSE(space_.try_reserve(5 * kMiB));
  EXPECT_EQ(told, 2);
}

TEST_F(SpaceClaimTest, WhatALargeCallLackedIsTold) {
  space_.set_claim(40 * kMiB);
  ASSERT_TRUE(space_.try_reserve(20 * kMiB));
  EXPECT_EQ(space_.take_lacking_bytes(), 0u);
  EXPECT_FALSE(space_.try_reserve(50 * kMiB));
  EXPECT_FALSE(space_.try_reserve(30 * kMiB));
  EXPECT_EQ(space_.take_lacking_bytes(), 30 * kMiB);
  EXPECT_EQ(space_.take_lacking_bytes(), 0u);
  space_.release(20 * kMiB);
}

}  // namespace space_claim_test
}  // namespace kvcachefs
