#include "store/upkeep/peer_touches.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace peer_touches_test {

constexpr int64_t kSecond = 1'000'000'000;

class PeerTouchesTest : public ::testing::Test {
 protected:
  static ObjectId of_peer(uint32_t ordinal, uint64_t number) { return ObjectId::make(ordinal, 1, number); }
  using Told = std::map<uint32_t, std::vector<ObjectId>>;

  ManualClock clock_{1'000 * kSecond};
  PeerTouches touches_{clock_};
};

TEST_F(PeerTouchesTest, WhatPeersHaveIsToldByNodeInTheOrderOfUse) {
  touches_.opened(of_peer(2, 7), 0);
  touches_.probed(1, kRootId, "x", of_peer(1, 9), 0);
  touches_.loaded_ahead(of_peer(2, 3));
  EXPECT_EQ(touches_.take(), (Told{{1, {of_peer(1, 9)}}, {2, {of_peer(2, 7), of_peer(2, 3)}}}));
  EXPECT_EQ(touches_.take(), Told{});
}

TEST_F(PeerTouchesTest, WhatIsOfThisNodeOrAbsentIsNot) {
  touches_.opened(of_peer(0, 7), 0);
  touches_.probed(1, kRootId, "x", ObjectId{}, 0);
  touches_.written(of_peer(1, 7), 5);
  EXPECT_EQ(touches_.take(), Told{});
}

TEST_F(PeerTouchesTest, WhatWasToldIsToldAgainOnlyAfterAWhile) {
  int told = 0;
  for (int second = 0; second < 60; ++second) {
    touches_.opened(of_peer(1, 7), 0);
    clock_.advance_ns(kSecond);
    if (second % 5 == 4) told += static_cast<int>(touches_.take().size());
  }
  EXPECT_GE(told, 3);
  EXPECT_LE(told, 6);
}

TEST_F(PeerTouchesTest, HowMuchItRemembersIsBounded) {
  for (uint64_t number = 1; number <= 3 * PeerTouches::kMost; ++number) touches_.opened(of_peer(1, number), 0);
  EXPECT_EQ(touches_.take().at(1).size(), PeerTouches::kMost);
  clock_.advance_ns(PeerTouches::kAgainNs);
  touches_.take();
  touches_.opened(of_peer(1, 3 * PeerTouches::kMost), 0);
  EXPECT_EQ(touches_.take(), (Told{{1, {of_peer(1, 3 * PeerTouches::kMost)}}})) << "what there was no room for comes another time";
}

TEST_F(PeerTouchesTest, ANodeThatBeginsAnewIsToldWhatWasUsedOfItOfLate) {
  touches_.opened(of_peer(1, 7), 0);
  touches_.opened(of_peer(2, 8), 0);
  EXPECT_EQ(touches_.take().size(), 2u);
  clock_.advance_ns(PeerTouches::kKeptNs);
  touches_.take();
  touches_.opened(of_peer(1, 9), 0);
  touches_.tell_again(1);
  EXPECT_EQ(touches_.take(), (Told{{1, {of_peer(1, 9), of_peer(1, 7)}}}));
  touches_.tell_again(3);
  EXPECT_EQ(touches_.take(), Told{});
  for (int hour = 0; hour < 2; ++hour) {
    clock_.advance_ns(PeerTouches::kKeptNs);
    touches_.take();
  }
  touches_.tell_again(1);
  EXPECT_EQ(touches_.take(), Told{}) << "that was two hours ago";
}

TEST_F(PeerTouchesTest, DamageIsToldOnceAndAgainToANodeThatBeginsAnew) {
  touches_.damaged(of_peer(1, 7));
  touches_.damaged(of_peer(2, 8));
  touches_.damaged(of_peer(0, 9));
  EXPECT_EQ(touches_.take_damaged(), (Told{{1, {of_peer(1, 7)}}, {2, {of_peer(2, 8)}}}));
  EXPECT_EQ(touches_.take_damaged(), Told{});
  touches_.tell_again(2);
  EXPECT_EQ(touches_.take_damaged(), (Told{{2, {of_peer(2, 8)}}}));
  EXPECT_EQ(touches_.take(), Told{}) << "it is no use";
  for (uint64_t number = 1; number <= 2 * PeerTouches::kMostDamaged; ++number) touches_.damaged(of_peer(1, number));
  EXPECT_EQ(touches_.take_damaged().at(1).size(), PeerTouches::kMostDamaged);
  EXPECT_EQ(touches_.take_damaged().at(1).size(), PeerTouches::kMostDamaged) << "the others are told later";
  EXPECT_EQ(touches_.take_damaged(), Told{});
}

TEST_F(PeerTouchesTest, DamageThatTheJournalDidNotTakeIsToldOnceMore) {
  touches_.damaged(of_peer(1, 7));
  touches_.damaged(of_peer(2, 8));
  const Told refused = touches_.take_damaged();
  touches_.damaged(of_peer(1, 9));
  touches_.put_back_damaged(refused);
  Told told = touches_.take_damaged();
  std::ranges::sort(told[1]);
  EXPECT_EQ(told, (Told{{1, {of_peer(1, 7), of_peer(1, 9)}}, {2, {of_peer(2, 8)}}}));
  EXPECT_EQ(touches_.take_damaged(), Told{});
}

TEST_F(PeerTouchesTest, DamageThatIsToldLaterIsBoundedAndTheRestIsCounted) {
  constexpr uint64_t kMore = 100;
  for (uint64_t number = 1; number <= PeerTouches::kMostDamagedKept + kMore; ++number) touches_.damaged(of_peer(1, number));
  EXPECT_EQ(touches_.take_dropped(), kMore);
  EXPECT_EQ(touches_.take_dropped(), 0u);
  const Told refused = touches_.take_damaged();
  for (uint64_t number = 1; number <= PeerTouches::kMostDamaged; ++number) touches_.damaged(of_peer(2, number));
  touches_.put_back_damaged(refused);
  EXPECT_EQ(touches_.take_dropped(), PeerTouches::kMostDamaged);
  size_t told = 0;
  for (Told next = touches_.take_damaged(); !next.empty(); next = touches_.take_damaged())
    for (const auto& [ordinal, ids] : next) told += ids.size();
  EXPECT_EQ(told, PeerTouches::kMostDamagedKept);
}

TEST_F(PeerTouchesTest, WhatIsKeptForThatIsBounded) {
  for (uint64_t number = 1; number <= 4 * PeerTouches::kMostKept; ++number) {
    touches_.opened(of_peer(1, number), 0);
    if (number % 1000 == 0) {
      clock_.advance_ns(PeerTouches::kAgainNs);
      touches_.take();
    }
  }
  touches_.take();
  touches_.tell_again(1);
  const size_t told = touches_.take().at(1).size();
  EXPECT_GE(told, PeerTouches::kMostKept);
  EXPECT_LE(told, 2 * PeerTouches::kMostKept);
}

}  // namespace peer_touches_test
}  // namespace kvcachefs
