#include "store/upkeep/peer_holds.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace peer_holds_test {

class PeerHoldsTest : public ::testing::Test {
 protected:
  static FreedPlace place(uint64_t object, uint64_t offset) {
    return {ObjectId{object}, Place{PlaceKind::kPacked, ExtentId{1}, 0, 4096}, JournalPosition{1, 2, offset}};
  }
  void tell(uint64_t offset, std::vector<ObjectId> pinned = {}) {
    Peers::Acknowledged told;
    told.position = {1, 2, offset};
    told.by = "other";
    told.nodes = {{"other", told.position}};
    told.pinned = std::move(pinned);
    told_ = std::make_shared<const Peers::Acknowledged>(std::move(told));
  }
  // Two nodes, of which the first is behind.
  void tell_of_two(uint64_t behind, uint64_t ahead) {
    Peers::Acknowledged told;
    told.position = {1, 2, behind};
    told.by = "slow";
    told.nodes = {{"fast", {1, 2, ahead}}, {"slow", told.position}};
    told_ = std::make_shared<const Peers::Acknowledged>(std::move(told));
  }
  // As read repeatedly: the peer is in that epoch of this node.
  void tell_epoch(uint32_t epoch, std::vector<ObjectId> pinned = {}) {
    Peers::Acknowledged told;
    told.position = {epoch, 0, 0};
    told.by = "other";
    told.nodes = {{"other", told.position}};
    told.pinned = std::move(pinned);
    known_ = told_ = std::make_shared<const Peers::Acknowledged>(std::move(told));
  }
  bool holds(const FreedPlace& freed) {
    holds_.begin(std::span(&freed, 1));
    const bool held = holds_.holds(freed);
    holds_.end(held);
    return held;
  }

  static constexpr int64_t kPatienceNs = 10'000'000'000;
  std::string lose_patience() {
    now_ns_ += kPatienceNs;
    return holds_.lose_patience(kPatienceNs);
  }

  int64_t now_ns_ = 1;
  bool wanted_ = false;
  std::shared_ptr<const Peers::Acknowledged> told_, known_;  // told_: on the volume
  int reads_ = 0;
  PeerHolds holds_{{[this] { return known_; },
                   [this] {
                     ++reads_;
                     return known_ = told_;
                   },
                   [this](bool wanted) { wanted_ = wanted; }, [this] { return now_ns_; }}};
};

TEST_F(PeerHoldsTest, UntilAllHaveReadThatItWasGivenUp) {
  tell(99);
  EXPECT_TRUE(holds(place(1, 100)));
  EXPECT_TRUE(wanted_);
  EXPECT_EQ(holds_.waits_for(), "other");
  tell(100);
  EXPECT_FALSE(holds(place(1, 100)));
  EXPECT_FALSE(wanted_);
  EXPECT_EQ(reads_, 2);
  EXPECT_FALSE(holds(place(1, 90)));
  EXPECT_EQ(reads_, 2) << "what is known is enough";
  EXPECT_TRUE(holds(place(1, 101)));
}

TEST_F(PeerHoldsTest, WhatIsReadSomewhereIsHeldLonger) {
  tell(200, {ObjectId{3}, ObjectId{5}});
  EXPECT_FALSE(holds(place(4, 100)));
  EXPECT_TRUE(holds(place(5, 100)));
  EXPECT_EQ(holds_.read_bytes(), 4096u);
  EXPECT_TRUE(wanted_);
  tell(200, {ObjectId{3}});
  known_ = told_;  // as read repeatedly
  EXPECT_FALSE(holds(place(5, 100)));
  EXPECT_EQ(holds_.read_bytes(), 0u);
}

TEST_F(PeerHoldsTest, WhatMayBeHeldIsKnownWithoutALook) {
  EXPECT_TRUE(holds_.may_hold(place(1, 100))) << "nothing is known";
  FreedPlace never_named = place(1, 100);
  never_named.given_up_at = {};
  EXPECT_FALSE(holds_.may_hold(never_named));
  tell(100, {ObjectId{3}});
  EXPECT_FALSE(holds(place(1, 100)));
  const int reads = reads_;
  EXPECT_FALSE(holds_.may_hold(place(1, 100)));
  EXPECT_TRUE(holds_.may_hold(place(1, 101)));
  EXPECT_TRUE(holds_.may_hold(place(3, 90)));
  EXPECT_EQ(reads_, reads);
}

TEST_F(PeerHoldsTest, WhatEarlierEpochsLeftIsHeldUntilAllHaveReadUpToThisOne) {
  using enum PeerHolds::Earlier;
  const auto nothing = [](ObjectId) { return false; };
  tell(99);
  EXPECT_EQ(holds_.earlier_epochs(2, nothing), kUnread);
  EXPECT_TRUE(wanted_);
  tell_epoch(2);
  EXPECT_EQ(holds_.earlier_epochs(2, nothing), kFree);
  EXPECT_FALSE(wanted_);
  EXPECT_EQ(reads_, 1) << "then it is read as it moves";
}

TEST_F(PeerHoldsTest, WhatWasOpenWhenTheyHadReadItIsHeldUntilItIsClosed) {
  using enum PeerHolds::Earlier;
  const ObjectId gone = ObjectId::make(0, 1, 7), died = ObjectId::make(0, 1, 8), later = ObjectId::make(0, 1, 9), own = ObjectId::make(0, 2, 1);
  const auto died_here = [&](ObjectId id) { return id == died; };
  tell_epoch(2, {gone, died, own});
  EXPECT_EQ(holds_.earlier_epochs(2, died_here), kOpen);
  EXPECT_TRUE(wanted_);
  EXPECT_EQ(lose_patience(), "") << "it has read of all";
  EXPECT_EQ(holds_.earlier_epochs(2, died_here), kOpen) << "it says that it reads it";
  tell_epoch(2, {died, later, own});
  EXPECT_EQ(holds_.earlier_epochs(2, died_here), kFree) << "what was removed since is no matter of the life before";
}

TEST_F(PeerHoldsTest, WhoDoesNotReadOnHoldsNothingOfEarlierEpochsForEver) {
  using enum PeerHolds::Earlier;
  const auto nothing = [](ObjectId) { return false; };
  tell(99);
  EXPECT_EQ(holds_.earlier_epochs(2, nothing), kUnread);
  EXPECT_EQ(lose_patience(), "other");
  EXPECT_EQ(holds_.earlier_epochs(2, nothing), kFree);
}

TEST_F(PeerHoldsTest, WhatNoRecordNamedNobodyCanKnow) {
  tell(1);
  FreedPlace never_named = place(1, 100);
  never_named.given_up_at = {};
  EXPECT_FALSE(holds(never_named));
}

TEST_F(PeerHoldsTest, WhoDoesNotFollowIsNotWaitedForAgainBeforeItDoes) {
  tell(50, {ObjectId{7}});
  EXPECT_TRUE(holds(place(1, 100)));
  EXPECT_EQ(lose_patience(), "other");
  EXPECT_FALSE(holds(place(1, 100)));
  EXPECT_TRUE(holds(place(7, 40))) << "it says that it reads this";
  EXPECT_FALSE(holds(place(1, 100)));
  EXPECT_EQ(lose_patience(), "") << "that was tried";
  EXPECT_TRUE(wanted_) << "or it would not be known that it follows again";
  tell(60);
  EXPECT_TRUE(holds(place(1, 100))) << "it follows again";
}

TEST_F(PeerHoldsTest, WhoFollowsIsWaitedForBesideOneThatDoesNot) {
  tell_of_two(50, 99);
  EXPECT_TRUE(holds(place(1, 60)));
  EXPECT_EQ(lose_patience(), "slow");
  EXPECT_FALSE(holds(place(1, 60)));
  EXPECT_TRUE(holds(place(2, 120))) << "one that follows will have read of it in a moment";
  EXPECT_TRUE(wanted_);
  tell_of_two(50, 120);
  EXPECT_FALSE(holds(place(2, 120)));
  EXPECT_TRUE(holds(place(3, 130)));
  tell_of_two(60, 120);
  EXPECT_TRUE(holds(place(2, 120))) << "it follows again";
  tell_of_two(130, 135);
  EXPECT_TRUE(holds(place(3, 140)));
  EXPECT_EQ(lose_patience(), "fast, slow");
  EXPECT_FALSE(holds(place(3, 140)));
}

TEST_F(PeerHoldsTest, ANodeThatFollowsIsWaitedForHoweverLongOthersKeepSpaceBack) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  uint64_t written = 100;
  tell_of_two(50, written);
  for (int second = 0; second < 30; ++second) {  // what dies is held until the next second
    EXPECT_TRUE(holds(place(1, ++written)));
    if (second < 10) {
      EXPECT_EQ(holds_.lose_patience(kPatienceNs), "") << second;
    }
    now_ns_ += kSecondNs;
    tell_of_two(50, written);
  }
  EXPECT_EQ(holds_.lose_patience(kPatienceNs), "slow");
  EXPECT_TRUE(holds(place(1, ++written)));
  EXPECT_EQ(holds_.lose_patience(kPatienceNs), "");
  EXPECT_EQ(lose_patience(), "fast") << "which does not follow any more";
}

TEST_F(PeerHoldsTest, WhereItIsNotKnownWhatAllAcknowledgeNoNodeIsGivenUpAndAllIsHeld) {
  tell_of_two(50, 99);
  EXPECT_TRUE(holds(place(1, 100)));
  now_ns_ += kPatienceNs;
  Peers::Acknowledged told;
  told.by = "new";
  told.nodes = {{"new", {}}};
  told.is_whole = false;
  known_ = told_ = std::make_shared<const Peers::Acknowledged>(told);
  EXPECT_TRUE(holds(place(1, 100)));
  EXPECT_EQ(holds_.lose_patience(kPatienceNs), "") << "one that has just come";
  tell_of_two(50, 99);
  known_ = told_;
  EXPECT_TRUE(holds(place(1, 100)));
  EXPECT_EQ(holds_.lose_patience(kPatienceNs), "fast, slow");
  known_ = told_ = std::make_shared<const Peers::Acknowledged>(told);
  EXPECT_TRUE(holds(place(1, 100))) << "others may have it open";
}

TEST_F(PeerHoldsTest, MarksOfALongWaitAreFew) {
  uint64_t written = 100;
  tell_of_two(50, 50);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_TRUE(holds(place(1, ++written)));
    now_ns_ += kPatienceNs / 10;
  }
  tell_of_two(50, written - 5);
  EXPECT_TRUE(holds(place(1, ++written)));
  EXPECT_EQ(holds_.lose_patience(kPatienceNs), "slow") << "the other has read what is older than five seconds";
}

TEST_F(PeerHoldsTest, WhoFollowsIsWaitedForAfterAnEarlierLife) {
  using enum PeerHolds::Earlier;
  const auto nothing = [](ObjectId) { return false; };
  tell_of_two(50, 99);
  EXPECT_EQ(holds_.earlier_epochs(1, nothing), kFree);
  EXPECT_EQ(holds_.earlier_epochs(2, nothing), kUnread);
  EXPECT_EQ(lose_patience(), "fast, slow");
  EXPECT_EQ(holds_.earlier_epochs(2, nothing), kFree);
}

}  // namespace peer_holds_test
}  // namespace kvcachefs
