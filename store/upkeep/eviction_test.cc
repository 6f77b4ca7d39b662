// Which chunks are evicted for room, and which stay, over a tree with bodies that a fake index names. No store, no journal.
#include "store/upkeep/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "store/load/testing/load_fixture.h"
#include "store/object/pin_mark.h"

namespace kvcachefs {
namespace eviction_test {

constexpr uint64_t kBody = 256 * kKiB;
constexpr int64_t kSecond = 1'000'000'000;

class EvictionTest : public LoadFixture {
 protected:
  static constexpr size_t kBodies = 40;

  EvictionTest() {
    clock.advance_ns(1'000 * kSecond);
    accesses.set_listeners({&evictor});
    evictor.configure({.on = true, .lease_ms = 0, .policy = "lru"});
    ids = put_bodies(PlaceKind::kPacked, std::vector<uint64_t>(kBodies, kBody));
    for (size_t i = 0; i < kBodies; ++i)  // the first one was used longest ago
      index.objects.at(ids[i]).attributes.mtime_ns = clock.realtime_ns() - static_cast<int64_t>(kBodies - i) * kSecond;
    space.configure(kBodies * kBody + kMiB, 0);
    records.measured({});  // sets a MiB aside for journals
    space.set_live(kBodies * kBody);
  }
  ~EvictionTest() override { accesses.set_listeners({}); }

  std::string name_of(ObjectId id) const { return "body-" + std::to_string(id.value); }
  bool is_there(ObjectId id) {
    const Tree::Read read = tree.read();
    const auto found = read.names().find(kRootId, name_of(id));
    return found && *found;
  }
  size_t there() {
    return static_cast<size_t>(std::ranges::count_if(ids, [this](ObjectId id) { return is_there(id); }));
  }

  Evictor evictor{clock};
  VolumeRefusals refusals{clock, space};
  GoneNames gone;
  int journaled = 0, drained = 0;
  std::vector<ObjectId> ids;
  bool awaits_sync = false;
  Eviction eviction{{evictor, tree, index, space, refusals, gone, counters, options, clock, wakeup, [this] { ++journaled; },
                     [this] { ++drained; }, [] { return false; }, /*read_only=*/false, nullptr, [this] { return awaits_sync; }}};
};

TEST_F(EvictionTest, WhatWasUsedLongestAgoGoesAheadUntilTheLowMarkIsFree) {
  std::vector<ObjectId> told;
  gone.set([&](std::vector<GoneName> names) {
    for (const GoneName& name : names) {
      EXPECT_EQ(name.parent, kRootId);
      EXPECT_EQ(name.name, name_of(name.id));
      told.push_back(name.id);
    }
  });
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_EQ(journaled, 1);
  const size_t went = kBodies - there();
  EXPECT_EQ(went, 4u) << "a twelfth of 40, and no more";
  EXPECT_EQ(told, std::vector<ObjectId>(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(went)));
  EXPECT_GT(space.free_bytes(), (went - 1) * kBody) << "what is about to come back counts as free, but for its records";
  EXPECT_FALSE(eviction.evict_ahead()) << "enough is free";
  EXPECT_EQ(there(), kBodies - went);
  EXPECT_EQ(evictor.counts().evicted_objects, went);
}

// Both before the removal is journaled and after it.
TEST_F(EvictionTest, WhatAPeerHasUnderTheNameIsSeenInThePlaceOfWhatWent) {
  const auto theirs = std::make_shared<FakeIndex>();
  theirs->put_object(record(kRootId, S_IFDIR | 0755));
  const auto put_theirs = [&](uint64_t number, int64_t born_ns) {
    const ObjectId made = ObjectId::make(0, 1, number);
    ObjectRecord row = record(made, S_IFREG | 0644);
    row.attributes.btime_ns = born_ns;
    theirs->put_object(std::move(row));
    theirs->put_name(kRootId, name_of(ids[0]), made, S_IFREG);
    return id_here(1, made);
  };
  const auto seen = [&] {
    const Tree::Read read = tree.read();
    const auto found = read.names().find(kRootId, name_of(ids[0]));
    EXPECT_TRUE(found) << found.error().message;
    return found && *found ? (*found)->child : ObjectId{};
  };
  const ObjectId older = put_theirs(1, -1);
  tree.write().view().set_peers({Part{1, "peer", theirs, std::make_shared<Statements>()}});
  ASSERT_EQ(seen(), ids[0]);
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_EQ(seen(), older);
  const auto items = tree.read().list(kRootId, 0, 100);
  ASSERT_TRUE(items);
  EXPECT_TRUE(std::ranges::any_of(*items, [&](const DirectoryItem& item) { return item.id == older && item.name == name_of(ids[0]); }));
  EXPECT_EQ(items->size(), there());
  const ObjectId newer = put_theirs(2, 1);
  EXPECT_EQ(seen(), newer);
  const auto own = tree.read().names().own_child(kRootId, name_of(ids[0]));
  EXPECT_TRUE(own && !own->valid());
}

// Else the others rely on it: what a node of a shared capacity keeps is the oldest of all, so it alone would have to give.
TEST_F(EvictionTest, WhatIsKeptForLongIsNotToldAsEvictable) {
  while (eviction.go_on_filling()) {}
  const auto told = [this] {
    uint64_t bytes = 0;
    for (const uint64_t of_age : evictor.bytes_by_age()) bytes += of_age;
    return bytes;
  };
  ASSERT_EQ(told(), kBodies * kBody);
  const ObjectPtr pool = object(ids[0]), open = object(ids[1]);
  for (const ObjectPtr& each : {pool, open}) {
    const auto lock = each->lock();
    each->add_handle();
  }
  {
    const auto lock = pool->lock();
    pool->base.place.kind = PlaceKind::kRaw;
  }
  pool->patched = true;
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_TRUE(is_there(ids[0]) && is_there(ids[1]));
  const uint64_t others = (there() - 2) * kBody;
  EXPECT_LT(there(), kBodies);
  EXPECT_EQ(told(), others + kBody) << "the open one may be closed soon";
  for (const ObjectPtr& each : {pool, open}) {
    const auto lock = each->lock();
    each->drop_handle();
  }
}

// A share is announced once a second; the keeper's steps come at any time.
TEST_F(EvictionTest, WhatOthersLackIsMadeOfLeasedChunksAfterThreeSecondsWhateverStepsComeBetween) {
  evictor.configure({.on = true, .lease_ms = 600'000, .policy = "lru"});
  while (eviction.go_on_filling()) {}
  for (const ObjectId id : ids) evictor.will_be_told(id, /*thread_id=*/1);
  std::atomic<uint64_t> refused{0};
  SpaceWaiters waiters{space, refused, clock, [] {}};
  SharedCapacity shared{{space, evictor, waiters, counters, options, clock, clock, [] {}, [] {}}};
  Eviction sharing{{evictor, tree, index, space, refusals, gone, counters, options, clock, wakeup, [] {}, [] {}, [] { return true; },
                    /*read_only=*/false, &shared}};
  ClaimPlan plan;
  plan.capacity_bytes = plan.claimable_bytes = 64 * kMiB;
  plan.evict_bytes = kBody;
  const auto second = [&] {
    shared.follow(plan, /*alone=*/false);
    for (int step = 0; step < 4; ++step) {
      sharing.evict_ahead();
      clock.advance_ns(kSecond / 4);
    }
  };
  for (int i = 0; i < 3; ++i) second();
  EXPECT_EQ(there(), kBodies) << "most leases end soon";
  second();
  EXPECT_LT(there(), kBodies);
  const size_t left = there();
  plan.evict_bytes = 0;
  second();
  plan.evict_bytes = kBody;
  second();
  EXPECT_EQ(there(), left) << "nobody lacked anything meanwhile: that is another wait";
}

TEST_F(EvictionTest, OpenLockedAndPinnedFilesStay) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const ObjectPtr body = object(ids[i]);
    const auto lock = body->lock();
    if (i == 0) body->add_handle();
    else body->locked = true;
  }
  index.objects.at(ids[2]).attributes.xattrs.push_back({std::string(kPinMark), {}});
  EXPECT_TRUE(eviction.evict_for_room(/*pressure=*/100)) << "all that may go";
  EXPECT_TRUE(is_there(ids[0]));
  EXPECT_TRUE(is_there(ids[1]));
  EXPECT_TRUE(is_there(ids[2]));
  EXPECT_EQ(there(), 3u);
  object(ids[0])->drop_handle();
}

TEST_F(EvictionTest, WhereNothingMayGoCallsNeedNotWait) {
  for (const ObjectId id : ids) {
    const ObjectPtr body = object(id);
    const auto lock = body->lock();
    body->add_handle();
  }
  EXPECT_TRUE(evictor.may_evict());
  EXPECT_FALSE(eviction.evict_for_room(0));
  EXPECT_EQ(drained, 1) << "what was just written could have gone";
  EXPECT_EQ(there(), kBodies);
  EXPECT_FALSE(evictor.may_evict());
  clock.advance_ns(2 * kSecond);
  EXPECT_TRUE(evictor.may_evict());
  for (const ObjectId id : ids) {
    const ObjectPtr body = object(id);
    const auto lock = body->lock();
    body->drop_handle();
  }
}

TEST_F(EvictionTest, OfAVolumeThatRefusesOnlyALittleGoesAtATime) {
  refusals.failed(Error{Code::kNoSpace, 0, "no inodes"});
  clock.advance_ns(kSecond);
  EXPECT_FALSE(eviction.evict_ahead()) << "only for calls that wait";
  EXPECT_EQ(there(), kBodies);
  EXPECT_TRUE(eviction.evict_for_room(3));
  EXPECT_EQ(there(), kBodies - 1);
}

// For instance a thin device is full: its file system reports room, but refuses writes.
TEST_F(EvictionTest, OfAVolumeThatRefusesAllTheSameNothingGoesForAWhile) {
  refusals.failed(Error{Code::kNoSpace, 0, "no room"});
  EXPECT_TRUE(eviction.evict_for_room(0));
  for (int again = 0; again < 100; ++again) {
    clock.advance_ns(kSecond / 20);
    EXPECT_FALSE(eviction.evict_for_room(3));
  }
  EXPECT_EQ(there(), kBodies - 1);
  clock.advance_ns(6 * kSecond);
  EXPECT_TRUE(eviction.evict_for_room(3)) << "10 s after the first";
  clock.advance_ns(15 * kSecond);
  EXPECT_FALSE(eviction.evict_for_room(3)) << "each pause is longer";
  EXPECT_EQ(there(), kBodies - 2);
  counters.write_volume_bytes += kBody;
  EXPECT_FALSE(eviction.evict_for_room(3)) << "the page cache took that, but it may never reach the medium";
  EXPECT_FALSE(eviction.may_make_room()) << "no call waits for it";
  awaits_sync = true;
  EXPECT_TRUE(eviction.may_make_room()) << "the next sync may tell that it helped";
  EXPECT_FALSE(eviction.evict_for_room(3)) << "it has not told yet";
  awaits_sync = false;
  counters.durable_bytes += kBody;  // as with a quota: evicting helped
  EXPECT_TRUE(eviction.may_make_room());
  EXPECT_TRUE(eviction.evict_for_room(3));
  EXPECT_EQ(there(), kBodies - 3);
}

TEST_F(EvictionTest, WhereTheVolumeIsBrokenNothingGoes) {
  refusals.failed(Error{Code::kIo, 0, "a write failed"});
  EXPECT_FALSE(eviction.evict_for_room(3));
  EXPECT_EQ(there(), kBodies);
}

TEST_F(EvictionTest, AfterStopNothingGoes) {
  eviction.stop();
  EXPECT_FALSE(eviction.evict_ahead());
  EXPECT_FALSE(eviction.evict_for_room(3));
  EXPECT_EQ(there(), kBodies);
}

TEST_F(EvictionTest, ShortRangesAreLeftWhileChunksGoAndGivenBackWhenItIsQuiet) {
  EXPECT_TRUE(eviction.is_quiet());
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_FALSE(eviction.is_quiet());
  eviction.note_reclaimed({.left_bytes = 3 * kBody, .punched = 2, .punched_bytes = 2 * kBody}, /*read_by_peers_bytes=*/0);
  EXPECT_EQ(eviction.left_bytes(), 3 * kBody);
  const size_t before = there();
  EXPECT_TRUE(eviction.evict_ahead()) << "what is left dead is not free: more goes beside it";
  EXPECT_LT(there(), before);
  clock.advance_ns(6 * kSecond);
  EXPECT_TRUE(eviction.is_quiet());
}

TEST_F(EvictionTest, WhatAnotherNodeReadsIsNoRoom) {
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_FALSE(eviction.evict_ahead());
  const size_t before = there();
  eviction.note_reclaimed({}, /*read_by_peers_bytes=*/4 * kBody);
  EXPECT_TRUE(eviction.evict_ahead()) << "that does not come back soon";
  EXPECT_LT(there(), before);
}

// Files that were removed or replaced while clients have them open.
TEST_F(EvictionTest, WhatIsStillReadHereIsNoRoomEither) {
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_FALSE(eviction.evict_ahead());
  const size_t before = there();
  eviction.note_reclaimed({.needed_bytes = 4 * kBody}, /*read_by_peers_bytes=*/0);
  EXPECT_TRUE(eviction.evict_ahead());
  EXPECT_LT(there(), before);
}

TEST_F(EvictionTest, WhatKeepsAnObjectIsTold) {
  EXPECT_TRUE(eviction.go_on_filling());
  const ObjectPtr body = object(ids[0]);
  const auto told = [&] {
    std::vector<std::pair<std::string, std::string>> facts;
    EvictGuard::describe(evictor, tree.read(), body, /*thread_id=*/1, facts);
    return facts.empty() ? std::string() : facts.front().second;
  };
  EXPECT_EQ(told(), "nothing");
  {
    const auto lock = body->lock();
    body->add_handle();
  }
  EXPECT_EQ(told(), "open");
  {
    const auto lock = body->lock();
    body->drop_handle();
  }
  body->locked = true;
  EXPECT_EQ(told(), "locked");
  body->locked = false;
  {
    const auto lock = body->lock();
    body->write_error = FailedWrite{Error{Code::kNoSpace, 0, "full"}, 0, kBody};
  }
  EXPECT_EQ(told(), "not settled");
  {
    const auto lock = body->lock();
    body->write_error->undone = true;
  }
  EXPECT_EQ(told(), "nothing") << "it is whole again";
}

}  // namespace eviction_test
}  // namespace kvcachefs
