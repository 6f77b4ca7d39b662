#include "store/upkeep/shared_capacity.h"

#include <gtest/gtest.h>

#include "store/base/units.h"

namespace kvcachefs {
namespace shared_capacity_test {

using Room = SharedCapacity::Room;
constexpr int64_t kSecondNs = 1'000'000'000;

class SharedCapacityTest : public ::testing::Test {
 protected:
  void SetUp() override { space_.configure(64 * kMiB, 0); }
  ClaimPlan plan(uint64_t evict_bytes = 0, bool others_make_room = true) {
    ClaimPlan plan;
    plan.capacity_bytes = plan.claimable_bytes = 64 * kMiB;
    plan.evict_bytes = evict_bytes;
    plan.others_make_room = others_make_room;
    return plan;
  }

  Space space_;
  ManualClock clock_{1000 * kSecondNs};
  std::atomic<uint64_t> refused_{0};
  SpaceWaiters waiters_{space_, refused_, clock_, [] {}};
  Evictor evictor_{clock_};
  Counters counters_;
  LiveOptions options_{StoreOptions{}};
  int wanted_ = 0, steps_ = 0;
  SharedCapacity shared_{{space_, evictor_, waiters_, counters_, options_, clock_, clock_, [this] { ++wanted_; }, [this] { ++steps_; }}};
};

TEST_F(SharedCapacityTest, ANodeThatIsAloneWaitsForNobody) {
  EXPECT_EQ(shared_.look_for_room(false), Room::kOwn);
  shared_.follow(plan(kMiB), false);
  EXPECT_TRUE(shared_.is_shared());
  shared_.follow({}, true);
  EXPECT_FALSE(shared_.is_shared());
  EXPECT_FALSE(shared_.may_get_room());
  EXPECT_EQ(shared_.take_share(), 0u);
  EXPECT_EQ(shared_.look_for_room(false), Room::kOwn);
  EXPECT_EQ(wanted_, 0);
}

TEST_F(SharedCapacityTest, ACallWaitsUntilTheClaimWasRaised) {
  shared_.follow(plan(), false);
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  EXPECT_EQ(wanted_, 1);
  EXPECT_EQ(shared_.look_for_room(true), Room::kAwaited) << "nobody has looked at it";
  EXPECT_TRUE(shared_.figures(false).waits);
  const uint64_t hopes = space_.hopes();
  shared_.raise_claim(5 * kMiB);
  EXPECT_GT(steps_, 0);
  EXPECT_NE(space_.hopes(), hopes) << "who was refused may try again";
  EXPECT_EQ(space_.claim_bytes(), 5 * kMiB);
  EXPECT_EQ(shared_.look_for_room(true), Room::kClaimed);
}

TEST_F(SharedCapacityTest, ANodeThatIsAloneClaimsMoreForACallAndNothingIsEvictedForThat) {
  space_.set_claim(5 * kMiB);
  ClaimPlan some = plan(3 * kMiB);
  some.unclaimed_bytes = 20 * kMiB;
  shared_.follow(some, /*alone=*/true);
  EXPECT_TRUE(shared_.may_get_room());
  EXPECT_EQ(space_.own_limit_bytes(), 64 * kMiB) << "nothing is evicted as if the claim were all there is";
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  EXPECT_EQ(wanted_, 1);
  shared_.raise_claim(64 * kMiB);
  EXPECT_EQ(shared_.look_for_room(true), Room::kClaimed);
  EXPECT_FALSE(shared_.may_get_room()) << "that was all";
  EXPECT_FALSE(shared_.others_may_make_room());
  EXPECT_EQ(shared_.look_for_room(false), Room::kOwn);
}

TEST_F(SharedCapacityTest, WhereTheFileSystemIsFullNoClaimHelps) {
  space_.set_claim(5 * kMiB);
  ClaimPlan some = plan();
  some.unclaimed_bytes = 20 * kMiB;
  shared_.follow(some, /*alone=*/true);
  ASSERT_TRUE(shared_.may_get_room());
  space_.set_backing({.total_bytes = kGiB, .available_bytes = kMiB});
  EXPECT_FALSE(shared_.may_get_room());
  EXPECT_EQ(shared_.look_for_room(false), Room::kOwn) << "a call is refused at once";
}

TEST_F(SharedCapacityTest, CallsWaitWhileTheClaimHasLapsed) {
  shared_.follow(plan(kMiB, false), false);
  shared_.hold_until(1);  // within the first second after this machine booted
  EXPECT_TRUE(shared_.may_get_room());
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  clock_.advance_ns(9 * kSecondNs);
  EXPECT_EQ(shared_.look_for_room(true), Room::kAwaited) << "the volume does not answer: nothing is evicted, and no call refused";
  shared_.hold_until(INT64_MAX);
  shared_.raise_claim(5 * kMiB);
  EXPECT_EQ(shared_.look_for_room(true), Room::kClaimed);
}

TEST_F(SharedCapacityTest, CallsDoNotWaitForEverForAClaimThatCannotBeTold) {
  shared_.follow(plan(kMiB, false), false);
  shared_.hold_until(1);
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  clock_.advance_ns(11 * kSecondNs);
  EXPECT_EQ(shared_.look_for_room(true), Room::kNone) << "to evict is of no use";
  EXPECT_FALSE(shared_.may_get_room()) << "those that come now do not wait as long";
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  EXPECT_EQ(shared_.look_for_room(true), Room::kNone);
  const uint64_t hopes = space_.hopes();
  shared_.hold_until(INT64_MAX);
  EXPECT_NE(space_.hopes(), hopes);
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited) << "it was told";
  shared_.raise_claim(5 * kMiB);
  EXPECT_EQ(shared_.look_for_room(true), Room::kClaimed);
}

TEST_F(SharedCapacityTest, WhoHasWaitedInVainForOthersDoesNotAtOnceWaitAgain) {
  shared_.follow(plan(), false);
  EXPECT_TRUE(shared_.may_get_room());
  shared_.lose_patience();
  EXPECT_FALSE(shared_.may_get_room());
  EXPECT_FALSE(shared_.others_may_make_room());
  clock_.advance_ns(11 * kSecondNs);
  EXPECT_TRUE(shared_.may_get_room());
  shared_.lose_patience();
  shared_.raise_claim(5 * kMiB);
  EXPECT_TRUE(shared_.may_get_room()) << "something moves";
}

TEST_F(SharedCapacityTest, ItWaitsForOthersThatHaveWhatIsOlderButNotForLong) {
  shared_.follow(plan(), false);
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  shared_.follow(plan(), false);
  EXPECT_EQ(shared_.look_for_room(true), Room::kAwaited);
  clock_.advance_ns(3 * kSecondNs);
  EXPECT_EQ(shared_.look_for_room(true), Room::kOwn);
  // Some of the oldest chunks are here.
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  shared_.follow(plan(kMiB), false);
  EXPECT_EQ(shared_.look_for_room(true), Room::kOwn);
  // No node has anything to give.
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  shared_.follow(plan(0, false), false);
  EXPECT_EQ(shared_.look_for_room(true), Room::kOwn);
  EXPECT_FALSE(shared_.may_get_room());
}

TEST_F(SharedCapacityTest, ARaiseThatIsUnderWayIsWaitedFor) {
  space_.set_claim(5 * kMiB);
  ClaimPlan little = plan(0, false);
  shared_.follow(little, false);
  ASSERT_FALSE(shared_.may_get_room());
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  little.target_bytes = space_.claim_bytes() + 4096;
  shared_.follow(little, false);
  EXPECT_EQ(shared_.look_for_room(true), Room::kAwaited);
  shared_.raise_claim(little.target_bytes);
  EXPECT_EQ(shared_.look_for_room(true), Room::kClaimed);
  // A raise that does not come is not waited for without end.
  little.target_bytes += 4096;
  EXPECT_EQ(shared_.look_for_room(false), Room::kAwaited);
  shared_.follow(little, false);
  EXPECT_EQ(shared_.look_for_room(true), Room::kAwaited);
  clock_.advance_ns(3 * kSecondNs);
  EXPECT_EQ(shared_.look_for_room(true), Room::kOwn);
}

TEST_F(SharedCapacityTest, WhatACallLacksIsTheLessTheMoreCameBack) {
  SpaceWaiters::Turn turn;
  space_.set_claim(0);
  space_.hope();
  ASSERT_TRUE(waiters_.wait(turn, [] {}));
  shared_.look_for_room(false);
  space_.note_lacking(kMiB);
  EXPECT_EQ(shared_.figures(false).lacking_bytes, kMiB);
  space_.note_lacking(kMiB / 2);
  EXPECT_EQ(shared_.figures(false).lacking_bytes, kMiB) << "the largest of those that wait";
  ASSERT_FALSE(evictor_.may_evict());
  counters_.reclaimed_bytes += kMiB;
  space_.note_lacking(4096);
  EXPECT_EQ(shared_.figures(false).lacking_bytes, 4096u) << "it tried again since";
}

// Else the node would give to others what was raised for the call, before the call is tried again.
TEST_F(SharedCapacityTest, ACallThatWasNotTriedSinceTheClaimWasRaisedIsNotToldAsLackingNothing) {
  evictor_.configure({.on = true, .lease_ms = 0, .policy = "lru", .most_pinned_bytes = UINT64_MAX});
  shared_.follow(plan(), false);
  space_.set_claim(0);
  bool is_tried = false;
  SpaceWaiters::Turn turn;
  ASSERT_TRUE(waiters_.wait(turn, [&] { is_tried = true; }));
  shared_.look_for_room(false);
  space_.note_lacking(8 * kMiB);
  ASSERT_EQ(shared_.figures(false).lacking_bytes, 8 * kMiB);
  shared_.raise_claim(5 * kMiB);
  EXPECT_EQ(shared_.figures(false).lacking_bytes, 3 * kMiB);
  shared_.raise_claim(8 * kMiB);
  EXPECT_GT(shared_.figures(false).lacking_bytes, 0u) << "it has not got that yet";
  space_.note_lacking(8 * kMiB + 4096);
  EXPECT_EQ(shared_.figures(false).lacking_bytes, 4096u) << "it was tried";
  shared_.raise_claim(9 * kMiB);
  const auto round = waiters_.begin_round();
  ASSERT_TRUE(round);
  waiters_.end_round(*round, /*gave_back=*/true);
  ASSERT_TRUE(is_tried);
  EXPECT_EQ(shared_.figures(false).lacking_bytes, 0u) << "it got what it needs";
}

TEST_F(SharedCapacityTest, WhoStoresNothingSaysNothingOfTheCapacityAndWaitsForNone) {
  SharedCapacity tends{{space_, evictor_, waiters_, counters_, options_, clock_, clock_, [] {}, [] {}, /*grows=*/false}};
  EXPECT_EQ(tends.figures(false).capacity_bytes, 0u);
  EXPECT_FALSE(tends.figures(false).grows);
  tends.follow(plan(), false);
  EXPECT_FALSE(tends.may_get_room());
}

TEST_F(SharedCapacityTest, AShareIsTakenOnceASecond) {
  shared_.follow(plan(3 * kMiB), false);
  EXPECT_EQ(steps_, 1);
  EXPECT_EQ(shared_.take_share(), 3 * kMiB);
  EXPECT_EQ(shared_.take_share(), 0u);
  shared_.follow(plan(3 * kMiB), false);
  EXPECT_EQ(shared_.take_share(), 0u) << "the others have not read of what went";
  clock_.advance_ns(kSecondNs);
  shared_.follow(plan(2 * kMiB), false);
  EXPECT_EQ(shared_.take_share(), 2 * kMiB);
}

// A node that has just begun has nothing to evict. Others refuse calls while all nodes tell that.
TEST_F(SharedCapacityTest, TheFirstChunksAreToldAtOnce) {
  evictor_.configure({.on = true, .lease_ms = 0, .policy = "lru", .most_pinned_bytes = UINT64_MAX});
  evictor_.found_directory({}, {}, kRootId, false);
  for (const uint64_t number = evictor_.filling(); !evictor_.build(number);) continue;
  EXPECT_EQ(shared_.figures(false).evictable_by_age, BytesByAge{});
  const ObjectId chunk = ObjectId::make(0, 1, 100);
  evictor_.created(kRootId, "chunk.tmp", chunk);
  evictor_.published(1, kRootId, "chunk", chunk, kMiB);
  const OwnFigures figures = shared_.figures(false);
  EXPECT_EQ(figures.evictable_by_age[0], kMiB);
  PeerFigures peer{.capacity_bytes = 64 * kMiB, .physical_bytes = 60 * kMiB, .claim_bytes = 60 * kMiB, .wish_bytes = 62 * kMiB,
                   .evictable_by_age = figures.evictable_by_age, .life = PeerFigures::Life::kLives};
  OwnFigures newcomer;
  newcomer.capacity_bytes = 64 * kMiB;
  newcomer.waits = true;
  EXPECT_TRUE(plan_claim(newcomer, kMiB, {{peer}}).others_make_room);
}

TEST_F(SharedCapacityTest, TheRateOfWritingIsTold) {
  shared_.figures(false);
  for (int second = 0; second < 8; ++second) {
    clock_.advance_ns(kSecondNs);
    counters_.write_received_bytes += 8 * kMiB;
    shared_.figures(false);
  }
  EXPECT_NEAR(static_cast<double>(shared_.figures(false).written_per_s), static_cast<double>(8 * kMiB), static_cast<double>(kMiB));
}

}  // namespace shared_capacity_test
}  // namespace kvcachefs
