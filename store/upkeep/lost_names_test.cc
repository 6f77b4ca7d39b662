#include "store/upkeep/lost_names.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "store/extent/extents.h"
#include "store/index/testing/fake_index.h"

namespace kvcachefs {
namespace lost_names_test {

constexpr int64_t kSecondNs = 1'000'000'000;

ObjectId id(uint32_t ordinal, uint64_t number) { return ObjectId::make(ordinal, 1, number); }

// A tree beside one peer, of which only an index is there. Both have stored "x", the peer later.
class LostNamesTest : public ::testing::Test {
 protected:
  LostNamesTest() {
    for (FakeIndex* index : {&own, theirs.get()}) {
      ObjectRecord root;
      root.id = kRootId;
      root.attributes.mode = 0040755;
      root.nlink = 2;
      index->put_object(std::move(root));
    }
    space.configure(uint64_t{1} << 30, 0);
    tree.write().view().set_peers({Part{1, "peer", theirs, std::make_shared<Statements>()}});
    put(own, 5, "x", 100);
    put(*theirs, 7, "x", 200);
    lost.created(kRootId, "x", id(0, 5));
    lost.published(1, kRootId, "x", id(0, 5), 1000);
    peer_names();
  }
  ~LostNamesTest() override { tree.clear(); }

  static void put(FakeIndex& index, uint64_t number, const std::string& name, int64_t btime_ns) {
    ObjectRecord record;
    record.id = id(0, number);
    record.attributes.mode = 0100644;
    record.attributes.btime_ns = btime_ns;
    record.body.size_bytes = 1000;
    record.body.place = {PlaceKind::kPacked, {1, 1}, 4096 * number, 1000};
    record.nlink = 1;
    index.put_object(std::move(record));
    index.put_name(kRootId, name, id(0, number), 0100000);
  }
  void peer_names() { lost.note_batch(1, Batch{{}, {NameRecord{kRootId, "x", id(0, 7)}}}); }
  void peer_syncs() { lost.note_batch(1, Batch{{}, {SyncedRecord{}}}); }
  void pass(int64_t seconds) {
    clock.advance_ns(seconds * kSecondNs);
    lost.drop_due(tree);
  }
  bool is_there() const { return tree.read().names().own_child(kRootId, "x") == id(0, 5); }
  ObjectId seen() const {
    const auto found = tree.read().find_name(kRootId, "x");
    return found && *found ? (*found)->child : ObjectId{};
  }

  ManualClock clock{1000 * kSecondNs};
  Evictor evictor{clock};
  Counters counters;
  LostNames lost{clock, evictor, counters};
  FakeIndex own;
  const std::shared_ptr<FakeIndex> theirs = std::make_shared<FakeIndex>();
  Space space;
  RecordSpace records{space, 64 * 1024 * 1024};
  AccessTracker accesses{[](ObjectId) { return std::nullopt; }, 0, 0};
  Wakeup wakeup;
  WorkQueue work{wakeup};
  Extents extents{nullptr, {}, 1};
  Discards discards{{space, work, extents}};
  DirtyQueue dirty;
  MemoryPool pool{64 * 1024 * 1024};
  Tree tree{{own, clock, accesses, space, records, discards, dirty, pool, true, "this", true}};
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
  put(*theirs, 7, "x", 50);
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
