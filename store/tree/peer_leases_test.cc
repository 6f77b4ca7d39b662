#include "store/tree/peer_leases.h"

#include <gtest/gtest.h>

#include "store/tree/testing/tree_beside_peer.h"

namespace kvcachefs {
namespace peer_leases_test {

constexpr int64_t kSecondNs = 1'000'000'000;

ObjectId id(uint32_t ordinal, uint64_t number) { return ObjectId::make(ordinal, 1, number); }

class PeerLeasesTest : public ::testing::Test {
 protected:
  PeerLeasesTest() { leases.set_lease_ms(5000); }
  void pass(int64_t seconds) { clock.advance_ns(seconds * kSecondNs); }
  bool has(ObjectId object) const { return leases.find(object).has_value(); }

  ManualClock clock{1000 * kSecondNs};
  PeerLeases leases{clock};
};

TEST_F(PeerLeasesTest, LastsFromTheLastUseAsLongAsIsSaidAndTheKernelGoesByIt) {
  leases.told(kRootId, id(1, 5));
  leases.opened(id(1, 6), 0);
  for (int second = 0; second < 30; ++second) {
    pass(1);
    leases.told(kRootId, id(2, 7));
    if (second == 3) leases.opened(id(1, 6), 0);
    EXPECT_EQ(has(id(1, 5)), second < 5) << second;
    EXPECT_EQ(has(id(1, 6)), second < 9) << second;
    EXPECT_TRUE(has(id(2, 7)));
  }
}

TEST_F(PeerLeasesTest, KnowsTheDirectoryAndWhetherAClientAskedForIt) {
  leases.told(kRootId, id(1, 5));
  pass(3);
  leases.opened(id(1, 5), 0);
  leases.loaded_ahead(id(1, 6));
  pass(3);
  leases.loaded_ahead(id(1, 5));
  const auto asked = leases.find(id(1, 5)), ahead = leases.find(id(1, 6));
  ASSERT_TRUE(asked && ahead);
  EXPECT_EQ(asked->directory, kRootId);
  EXPECT_EQ(asked->until_ns, 1012 * kSecondNs);
  EXPECT_EQ(asked->asked_until_ns, 1009 * kSecondNs);
  EXPECT_FALSE(ahead->directory.valid());
  EXPECT_FALSE(ahead->asked_until_ns);
}

TEST_F(PeerLeasesTest, IsOfWhatPeersHaveAlone) {
  leases.told(kRootId, id(0, 5));
  leases.told(kRootId, ObjectId{});
  leases.probed(1, kRootId, "x", id(1, 5), 0);
  EXPECT_FALSE(has(id(0, 5)));
  EXPECT_FALSE(has(ObjectId{}));
  EXPECT_FALSE(has(id(1, 5))) << "it was told under the lock";
}

TEST_F(PeerLeasesTest, ThereAreNoneWithoutATime) {
  leases.set_lease_ms(0);
  leases.told(kRootId, id(1, 5));
  EXPECT_FALSE(has(id(1, 5)));
}

// A read that was begun before forget() may be noted after it.
TEST_F(PeerLeasesTest, WhatWasRemovedHereGetsNoneByALateUse) {
  leases.told(kRootId, id(1, 5));
  leases.forget(id(1, 5));
  EXPECT_FALSE(has(id(1, 5)));
  for (int second = 0; second < 6; ++second) {
    leases.opened(id(1, 5), 0);
    leases.loaded_ahead(id(1, 6));
    EXPECT_FALSE(has(id(1, 5)));
    pass(1);
  }
}

TEST_F(PeerLeasesTest, ListingsLeaveRoomForProbes) {
  for (uint64_t number = 0; number < 2 * PeerLeases::kMost; ++number) leases.listed(kRootId, id(1, 5 + number));
  EXPECT_TRUE(has(id(1, 5)));
  EXPECT_FALSE(has(id(1, 4 + 2 * PeerLeases::kMost)));
  for (uint64_t number = 0; number < 2 * PeerLeases::kMost; ++number) leases.told(kRootId, id(2, 5 + number));
  EXPECT_TRUE(has(id(2, 4 + PeerLeases::kMost / 2)));
  EXPECT_FALSE(has(id(2, 5 + PeerLeases::kMost / 2)));
}

class TreeLeases : public PeerLeasesTest, protected testing::TreeBesidePeer {
 protected:
  TreeLeases() : TreeBesidePeer(clock, &leases) {
    space.configure(128 * 1024, 0);  // an eighth of it, half of that each node: two blocks
  }

  void put(uint64_t number, const std::string& name) { TreeBesidePeer::put(*theirs, number, name); }
  void evict(uint64_t number, const std::string& name) {
    const Batch batch{{}, {UnnameRecord{kRootId, name, id(0, number), true}}};
    Tree::Write names = tree.write();
    names.keep_leased(1, batch);
    theirs->names.erase({kRootId, name_cookie(name)});
    theirs->objects.erase(id(0, number));
    names.follow(1, PeerBatch{batch, {}, {}});
  }
  // Journals all that waits.
  void settle() {
    Tree::Write names = tree.write();
    for (const DirtyName& name : names.names().take_pending()) names.names().settle(name, {});
  }
};

TEST_F(TreeLeases, WhatWasToldIsSeenAndReadUntilItsLeaseIsOver) {
  put(5, "x");
  put(6, "y");
  leases.told(kRootId, found("x"));
  evict(5, "x");
  evict(6, "y");
  EXPECT_EQ(found("x"), id(1, 5));
  EXPECT_EQ(found("y"), ObjectId{});
  EXPECT_EQ(tree.read().stat(id(1, 5))->nlink, 1u);
  EXPECT_EQ(tree.write().still_read(1), std::vector<ObjectId>{id(0, 5)});
  pass(6);
  tree.write().end_leases();
  EXPECT_EQ(found("x"), ObjectId{});
  EXPECT_EQ(tree.write().still_read(1), std::vector<ObjectId>{});
  EXPECT_EQ(tree.find(id(1, 5)), nullptr);
}

TEST_F(TreeLeases, WhatIsHiddenByALaterFileDoesNotComeBackWithoutThat) {
  put(5, "x");
  leases.told(kRootId, found("x"));
  TreeBesidePeer::put(own, 7, "x", 1);
  ASSERT_EQ(found("x"), id(0, 7));
  evict(5, "x");
  own.names.erase({kRootId, name_cookie("x")});
  EXPECT_EQ(found("x"), ObjectId{});
}

TEST_F(TreeLeases, WhateverOfANameANodeRemovesItsLeaseEnds) {
  put(5, "x");
  put(6, "y");
  for (const char* name : {"x", "y"}) leases.told(kRootId, found(name));
  evict(5, "x");
  evict(6, "y");
  TreeBesidePeer::put(own, 7, "x");
  const Batch batch{{}, {StatementRecord{"this", {}, UnnameRecord{kRootId, "x", id(0, 7), false}}}};
  tree.write().follow(1, PeerBatch{batch, {}, {}});
  own.names.erase({kRootId, name_cookie("x")});
  EXPECT_EQ(found("x"), ObjectId{});
  EXPECT_EQ(found("y"), id(1, 6));
}

TEST_F(TreeLeases, WhatAClientHereRemovedDoesNotComeBackWhileThatWaitsToBeJournaled) {
  put(5, "x");
  leases.told(kRootId, found("x"));
  ASSERT_TRUE(tree.write().unlink(kRootId, "x", 1));
  evict(5, "x");
  settle();
  EXPECT_EQ(found("x"), ObjectId{});
}

TEST_F(TreeLeases, WhatAClientHereRemovesMeanwhileIsGoneAndNothingIsSaidOfIt) {
  put(5, "x");
  leases.told(kRootId, found("x"));
  evict(5, "x");
  {
    Tree::Write names = tree.write();
    ASSERT_TRUE(names.unlink(kRootId, "x", 1));
    EXPECT_TRUE(names.names().dirty(kRootId, "x")->overridden.empty());
  }
  settle();
  EXPECT_EQ(found("x"), ObjectId{});
  EXPECT_EQ(tree.find(id(1, 5)), nullptr);
  EXPECT_EQ(tree.write().still_read(1), std::vector<ObjectId>{});
}

TEST_F(TreeLeases, WhatWasOnlyRenewedGivesWayToWhatWasPromised) {
  for (uint64_t number = 5; number < 9; ++number) put(number, std::to_string(number));
  for (uint64_t number = 5; number < 8; ++number) leases.told(kRootId, found(std::to_string(number)));
  for (uint64_t number = 5; number < 8; ++number) evict(number, std::to_string(number));
  EXPECT_EQ(found("5"), id(1, 5));
  EXPECT_EQ(found("6"), id(1, 6));
  EXPECT_EQ(found("7"), ObjectId{}) << "there is no room for it";
  pass(4);
  leases.told(kRootId, id(1, 5));
  pass(3);
  tree.write().end_leases();
  EXPECT_EQ(found("5"), id(1, 5));
  EXPECT_EQ(found("6"), ObjectId{});
  put(6, "6");
  put(7, "7");
  for (uint64_t number = 6; number < 9; ++number) leases.told(kRootId, found(std::to_string(number)));
  for (uint64_t number = 6; number < 9; ++number) evict(number, std::to_string(number));
  EXPECT_EQ(found("5"), ObjectId{});
  EXPECT_EQ(found("6"), id(1, 6));
  EXPECT_EQ(found("7"), id(1, 7));
  EXPECT_EQ(found("8"), ObjectId{});
}

TEST_F(TreeLeases, WhatWasMerelyListedGivesWayToWhatWasProbed) {
  for (uint64_t number = 5; number < 10; ++number) put(number, std::to_string(number));
  for (uint64_t number = 5; number < 8; ++number) leases.listed(kRootId, found(std::to_string(number)));
  leases.told(kRootId, id(1, 6));  // ... and probed behind that
  for (const uint64_t probed : {8, 9}) leases.told(kRootId, id(1, probed));
  for (const uint64_t gone : {5, 6, 7, 8, 9}) evict(gone, std::to_string(gone));
  EXPECT_EQ(found("5"), ObjectId{});
  EXPECT_EQ(found("6"), id(1, 6));
  EXPECT_EQ(found("7"), ObjectId{}) << "there was no room for it";
  EXPECT_EQ(found("8"), id(1, 8));
  EXPECT_EQ(found("9"), ObjectId{}) << "those that are there were probed, too";
  EXPECT_EQ(tree.write().still_read(1), (std::vector<ObjectId>{id(0, 6), id(0, 8)}));
}

TEST_F(TreeLeases, ThereAre4096AtATimeAndEachIsToldToItsNode) {
  space.configure(uint64_t{1} << 30, 0);
  constexpr uint64_t kMany = 5000;
  for (uint64_t number = 5; number < 5 + kMany; ++number) {
    put(number, std::to_string(number));
    leases.told(kRootId, id(1, number));
  }
  size_t seen = 0;
  for (uint64_t number = 5; number < 5 + kMany; ++number) evict(number, std::to_string(number));
  for (uint64_t number = 5; number < 5 + kMany; ++number) seen += found(std::to_string(number)).valid() ? 1 : 0;
  EXPECT_EQ(seen, 4096u);
  EXPECT_EQ(tree.write().still_read(1).size(), seen);
  pass(6);
  tree.write().end_leases();
  EXPECT_TRUE(tree.read().view().leased().empty());
  EXPECT_EQ(tree.read().objects_in_ram(), 0u);
}

TEST_F(TreeLeases, WhereTheyAreSwitchedOffThoseThereAreEnd) {
  put(5, "x");
  leases.told(kRootId, found("x"));
  evict(5, "x");
  ASSERT_EQ(found("x"), id(1, 5));
  leases.set_lease_ms(0);
  tree.write().end_leases();
  EXPECT_EQ(found("x"), ObjectId{});
}

TEST_F(TreeLeases, APartThatIsReadAnewIsSeenAsItIs) {
  put(5, "x");
  leases.told(kRootId, found("x"));
  evict(5, "x");
  ASSERT_EQ(found("x"), id(1, 5));
  tree.write().follow_all(1);
  EXPECT_EQ(found("x"), ObjectId{});
  EXPECT_EQ(tree.find(id(1, 5)), nullptr);
}

}  // namespace peer_leases_test
}  // namespace kvcachefs
