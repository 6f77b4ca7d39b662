#include "store/upkeep/lost_names.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "store/tree/testing/tree_beside_peer.h"

namespace kvcachefs {
namespace lost_names_test {

constexpr int64_t kSecondNs = 1'000'000'000;

ObjectId id(uint32_t ordinal, uint64_t number) { return ObjectId::make(ordinal, 1, number); }

// Both nodes have stored "x", the peer later.
class LostNamesTest : public ::testing::Test {
 protected:
  LostNamesTest() {
    nodes.space.configure(uint64_t{1} << 30, 0);
    nodes.put(own, 5, "x", 100);
    nodes.put(*theirs, 7, "x", 200);
    lost.created(kRootId, "x", id(0, 5));
    lost.published(1, kRootId, "x", id(0, 5), 1000);
    peer_names();
  }

  void peer_names() { lost.note_batch(1, Batch{{}, {NameRecord{kRootId, "x", id(0, 7)}}}); }
  void peer_syncs() { lost.note_batch(1, Batch{{}, {SyncedRecord{}}}); }
  void pass(int64_t seconds) {
    clock.advance_ns(seconds * kSecondNs);
    lost.drop_due(tree);
  }
  bool is_there() const { return tree.read().names().own_child(kRootId, "x") == id(0, 5); }
  ObjectId seen() const { return nodes.found("x"); }

  ManualClock clock{1000 * kSecondNs};
  Evictor evictor{clock};
  Counters counters;
  LostNames lost{clock, evictor, counters};
  testing::TreeBesidePeer nodes{clock};
  FakeIndex& own = nodes.own;
  const std::shared_ptr<FakeIndex>& theirs = nodes.theirs;
  Tree& tree = nodes.tree;
};

TEST_F(LostNamesTest, GoesWhenThatWhichIsSeenIsOnTheVolumeForGood) {
  peer_syncs();
  pass(4);
  EXPECT_TRUE(is_there()) << "another node may not have read it";
  pass(1);
  EXPECT_FALSE(is_there());
  EXPECT_EQ(seen(), id(1, 7));
  EXPECT_EQ(counters.lost_names, 1u);
  const auto changed = tree.write().names().take_pending();
  ASSERT_EQ(changed.size(), 1u) << "it is to be journaled";
  EXPECT_TRUE(tree.read().names().dirty(kRootId, "x")->overridden.empty()) << "nothing is said of what the other has";
}

TEST_F(LostNamesTest, StaysUntilItsWinnersNodeHasSynced) {
  for (int look = 0; look < 3; ++look) pass(5);
  EXPECT_TRUE(is_there());
  peer_syncs();
  lost.note_batch(1, Batch{{}, {NameRecord{kRootId, "another", id(0, 8)}}});
  pass(5);
  EXPECT_FALSE(is_there());
}

TEST_F(LostNamesTest, ASyncBeforeTheWinnerWasSeenSaysNothingOfIt) {
  peer_syncs();
  peer_names();
  for (int look = 0; look < 3; ++look) pass(5);
  EXPECT_TRUE(is_there());
}

TEST_F(LostNamesTest, WhatIsReadOfTheOtherMuchLaterWinsAsWell) {
  theirs->names.clear();
  for (int look = 0; look < LostNames::kMostLooks; ++look) pass(5);
  EXPECT_TRUE(is_there());
  theirs->put_name(kRootId, "x", id(0, 7), 0100000);
  peer_names();
  peer_syncs();
  pass(5);
  EXPECT_FALSE(is_there());
}

TEST_F(LostNamesTest, AnotherNodeThatIsReadAnewIsLookedAtAsAWhole) {
  theirs->names.clear();
  for (int look = 0; look < LostNames::kMostLooks; ++look) pass(5);
  peer_syncs();
  theirs->put_name(kRootId, "x", id(0, 7), 0100000);
  lost.note_all_anew(1);
  pass(5);
  EXPECT_TRUE(is_there()) << "whether that is on the volume for good is not known";
  peer_syncs();
  pass(5);
  EXPECT_FALSE(is_there());
}

TEST_F(LostNamesTest, StaysWhileTheOtherIsEmpty) {
  theirs->objects.at(id(0, 7)).body.size_bytes = 0;
  peer_syncs();
  for (int look = 0; look < 3; ++look) pass(5);
  EXPECT_TRUE(is_there());
  theirs->objects.at(id(0, 7)).body.size_bytes = 1000;
  pass(5);
  EXPECT_FALSE(is_there());
}

TEST_F(LostNamesTest, TheLaterOneStays) {
  nodes.put(*theirs, 7, "x", 50);
  peer_syncs();
  for (int look = 0; look < 3; ++look) pass(5);
  EXPECT_TRUE(is_there());
  EXPECT_EQ(seen(), id(0, 5));
}

TEST_F(LostNamesTest, WhatIsOpenGoesOnceItIsClosed) {
  peer_syncs();
  const ObjectPtr object = *tree.write().get(id(0, 5));
  object->handles = 1;
  pass(5);
  EXPECT_TRUE(is_there());
  object->handles = 0;
  pass(5);
  EXPECT_FALSE(is_there());
}

TEST_F(LostNamesTest, WhatIsPinnedStays) {
  evictor.configure({.on = true, .lease_ms = 0, .policy = "lru", .most_pinned_bytes = 1 << 20});
  evictor.found_directory({}, {}, kRootId, false);
  while (!evictor.build(evictor.filling())) {
  }
  evictor.published(1, kRootId, "x", id(0, 5), 1000);
  ASSERT_TRUE(evictor.pin(id(0, 5), false, true));
  peer_syncs();
  for (int look = 0; look < LostNames::kMostLooks + 1; ++look) pass(5);
  EXPECT_TRUE(is_there());
}

TEST_F(LostNamesTest, WhatHasAnotherNameByThenStays) {
  own.names.erase({kRootId, name_cookie("x")});
  own.put_name(kRootId, "y", id(0, 5), 0100000);
  peer_syncs();
  pass(5);
  EXPECT_EQ(tree.read().names().own_child(kRootId, "y"), id(0, 5));
}

}  // namespace lost_names_test
}  // namespace kvcachefs
