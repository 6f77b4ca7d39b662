// Which packs are emptied, and where their live bodies go: over lanes and a committer without threads, on a volume in memory. No store.
#include "store/upkeep/compactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "store/writeback/testing/writeback_fixture.h"

namespace kvcachefs {
namespace compactor_test {

constexpr uint64_t kBody = 256 * kKiB;
constexpr int64_t kSecond = 1'000'000'000;

class CompactorTest : public WritebackFixture {
 protected:
  static constexpr int kBodies = 28;  // four packs of seven

  CompactorTest() {
    clock.advance_ns(1'000 * kSecond);
    accesses.set_listeners({&evictor});
    set_evict(false);
    for (int i = 0; i < kBodies; ++i) {
      bodies.push_back(write_new(std::to_string(i), kBody, static_cast<uint64_t>(i)));
      ids.push_back(bodies.back()->id);
      evictor.published(/*thread_id=*/static_cast<uint32_t>(i), kRootId, std::to_string(i), ids.back(), kBody);
      run();
    }
    bulk.finish();
    std::map<ExtentId, int> count;
    for (const ObjectId id : ids) ++count[pack_of(id)];
    for (const auto& [id, of_it] : count) packs.push_back(id);
  }
  ~CompactorTest() override { accesses.set_listeners({}); }

  void set_evict(bool on) { evictor.configure({.on = on, .lease_ms = 0, .policy = "lru"}); }
  const Place& place(ObjectId id) { return index.objects.at(id).body.place; }
  ExtentId pack_of(ObjectId id) { return place(id).extent; }
  // Removed by a client and journaled, but its space is not given back.
  void remove(int i) {
    bodies[static_cast<size_t>(i)].reset();
    ASSERT_TRUE(tree.write().unlink(kRootId, std::to_string(i), /*thread_id=*/1));
    run();
    for (const FreedPlace& freed : dead.take()) dead.keep_unpunched(freed.place.extent, align_up(freed.place.length, kBlockBytes));
    dead.settle({});
  }
  // Counts like the index.
  void count_extents() {
    index.extents.clear();
    for (const auto& [id, row] : index.objects) {
      if (row.body.place.kind != PlaceKind::kPacked) continue;
      ExtentUsage& usage = index.extents[row.body.place.extent];
      usage.kind = PlaceKind::kPacked;
      usage.live_bytes += align_up(row.body.place.length, kBlockBytes);
      ++usage.bodies;
    }
  }
  bool step(bool waited_for = false) {
    count_extents();
    const bool any = compactor.step(eviction.room_wanted(0), waited_for);
    run();
    return any;
  }
  size_t left_in(ExtentId pack) {
    return static_cast<size_t>(std::ranges::count_if(index.objects, [&](const auto& each) { return each.second.body.place.extent == pack; }));
  }
  // Uses up the capacity except for `bytes`.
  void leave_room(uint64_t bytes) {
    for (int i = 0; i < 10; ++i) {  // the space set aside for records depends on the capacity
      records.accept(1);
      space.configure(space.used_bytes() + bytes, 0);
    }
  }

  Evictor evictor{clock};
  GoneNames gone;
  Eviction eviction{{evictor, tree, index, space, refusals, gone, counters, options, clock, wakeup, [] {}, [] {}, [] { return false; },
                     /*read_only=*/false}};
  Compactor compactor{{tree, index, dead, space, refusals, relocator, eviction, counters, clock, kExtentBytes}};
  std::vector<ObjectPtr> bodies;
  std::vector<ObjectId> ids;
  std::vector<ExtentId> packs;
};

TEST_F(CompactorTest, ThePackWithTheMostDeadIsEmptiedAndNoMoreThanNeeded) {
  ASSERT_EQ(packs.size(), 4u);
  for (const int i : {0, 7, 8, 9, 10, 11, 14}) remove(i);
  leave_room(kMiB);
  EXPECT_TRUE(step());
  EXPECT_EQ(left_in(packs[1]), 0u);
  EXPECT_EQ(left_in(packs[0]), 6u);
  EXPECT_EQ(left_in(packs[2]), 6u);
  EXPECT_EQ(left_in(packs[3]), 7u);
  EXPECT_EQ(counters.moved_bodies, 2u);
  EXPECT_EQ(counters.moved_bytes, 2 * kBody);
  for (const int i : {12, 13}) EXPECT_TRUE(holds(bodies[static_cast<size_t>(i)], bytes_of(kBody, static_cast<uint64_t>(i)))) << i;
}

TEST_F(CompactorTest, WhereLittleIsDeadNothingMoves) {
  remove(3);
  leave_room(512 * kMiB);
  EXPECT_FALSE(step());
  EXPECT_FALSE(compactor.goes_on());
  EXPECT_EQ(counters.moved_bodies, 0u);
}

TEST_F(CompactorTest, WhatIsWrittenOrWasReplacedIsLeft) {
  for (const int i : {0, 1, 2}) remove(i);
  bodies[3]->write_handles = bodies[3]->handles = 1;
  write_at(bodies[4], 0, bytes_of(kBody, 99));
  leave_room(kMiB);
  EXPECT_TRUE(step());
  EXPECT_EQ(pack_of(ids[3]), packs[0]);
  EXPECT_TRUE(holds(bodies[4], bytes_of(kBody, 99)));
  EXPECT_EQ(counters.moved_bodies, 2u);
  bodies[3]->write_handles = bodies[3]->handles = 0;
  clock.advance_ns(30 * kSecond);
  leave_room(2 * kBody);  // few bytes
  EXPECT_TRUE(step(/*waited_for=*/true));
  EXPECT_EQ(left_in(packs[0]), 0u);
}

// Whatever clients do between the choice and the seal, the space reserved for the body comes back.
TEST_F(CompactorTest, WhatIsChangedOrRemovedWhileItMovesIsThat) {
  for (const int i : {0, 1, 2, 3}) remove(i);
  leave_room(kMiB);
  compactor.keep_room();
  const uint64_t reserved = space.reserved_bytes();
  count_extents();
  ASSERT_TRUE(compactor.step(eviction.room_wanted(0), false));
  EXPECT_TRUE(bodies[4]->is_moving() && bodies[5]->is_moving() && bodies[6]->is_moving());
  write_at(bodies[4], 0, bytes_of(kBlockBytes, 99));
  EXPECT_FALSE(bodies[4]->is_moving());
  ASSERT_TRUE(tree.write().unlink(kRootId, "5", /*thread_id=*/1));
  bodies[5].reset();
  run();
  EXPECT_LE(space.reserved_bytes(), reserved) << "of what was set aside some was taken";
  for (const int i : {4, 6}) EXPECT_EQ(bodies[static_cast<size_t>(i)]->reserved_bytes + bodies[static_cast<size_t>(i)]->sealing_reserved_bytes, 0u) << i;
  EXPECT_FALSE(index.objects.contains(ids[5]));
  auto changed = bytes_of(kBody, 4);
  std::ranges::copy(bytes_of(kBlockBytes, 99), changed.begin());
  EXPECT_TRUE(holds(bodies[4], changed));
  EXPECT_TRUE(holds(bodies[6], bytes_of(kBody, 6)));
  EXPECT_EQ(left_in(packs[0]), 0u);
}

// The space set aside suffices; without it nothing moves, and the capacity is never exceeded.
TEST_F(CompactorTest, WithoutRoomWhatWasSetAsideIsTaken) {
  for (const int i : {0, 1, 2, 3, 4, 5}) remove(i);
  leave_room(0);
  EXPECT_FALSE(step(/*waited_for=*/true));
  EXPECT_EQ(left_in(packs[0]), 1u);
  clock.advance_ns(kSecond);
  leave_room(2 * kMiB);
  compactor.keep_room();
  leave_room(0);
  EXPECT_TRUE(step(/*waited_for=*/true));
  EXPECT_EQ(left_in(packs[0]), 0u);
  EXPECT_LE(space.physical_bytes(), space.limit_bytes());
}

TEST_F(CompactorTest, WithoutRoomItIsEvictedWhereItMay) {
  set_evict(true);
  while (eviction.go_on_filling()) {
  }
  EXPECT_EQ(space.reserved_bytes(), 0u);
  for (const int i : {0, 1, 2, 3, 4}) remove(i);
  leave_room(0);
  EXPECT_TRUE(step(/*waited_for=*/true));
  EXPECT_EQ(counters.moved_bodies, 0u);
  EXPECT_EQ(left_in(packs[0]), 0u);
  EXPECT_EQ(evictor.counts().evicted_objects, 2u);
}

// Only the end of a chain may be evicted: so bodies go from the back of the pack.
TEST_F(CompactorTest, WithoutRoomAChainGoesFromItsEnd) {
  set_evict(true);
  while (eviction.go_on_filling()) {
  }
  for (const int i : {0, 1, 2}) remove(i);
  for (const int i : {3, 4, 5, 6}) evictor.published(/*thread_id=*/77, kRootId, std::to_string(i), ids[static_cast<size_t>(i)], kBody);
  leave_room(0);
  EXPECT_TRUE(step(/*waited_for=*/true));
  EXPECT_EQ(left_in(packs[0]), 0u);
  EXPECT_EQ(counters.moved_bodies, 0u);
}

// The calls are refused at once, not after round upon round.
TEST_F(CompactorTest, WhereNothingCanLeaveAPackThatIsTheEndOfIt) {
  for (int pack = 0; pack < 4; ++pack)
    for (int i = 0; i < 3; ++i) remove(7 * pack + i);
  leave_room(0);
  EXPECT_FALSE(step(/*waited_for=*/true));
  EXPECT_FALSE(compactor.is_under_way(eviction.room_wanted(0)));
  EXPECT_FALSE(compactor.goes_on());
}

// A bad sector, or a server that is away, is no reason to stop all writes.
TEST_F(CompactorTest, WhatCannotBeReadNowStaysAndTheRestMoves) {
  for (const int i : {0, 1, 2, 3, 4}) remove(i);
  for (const int i : {5, 6}) {
    const auto lock = bodies[static_cast<size_t>(i)]->lock();
    bodies[static_cast<size_t>(i)]->units.clear();
  }
  const uint64_t bad = place(ids[5]).offset;
  on_call = [&](const VolumeCall& call) { return call.kind == VolumeCall::Kind::kRead && call.offset == bad ? Fault{.sys_errno = EIO} : Fault{}; };
  leave_room(kMiB);
  compactor.keep_room();
  const uint64_t reserved = space.reserved_bytes();
  EXPECT_TRUE(step());
  EXPECT_EQ(left_in(packs[0]), 1u);
  EXPECT_EQ(pack_of(ids[5]), packs[0]);
  EXPECT_FALSE(bodies[5]->content_dirty());
  EXPECT_FALSE(bodies[5]->base.quarantined);
  EXPECT_FALSE(refusals.is_failing());
  EXPECT_TRUE(holds(bodies[6], bytes_of(kBody, 6)));
  EXPECT_LE(space.reserved_bytes(), reserved) << "of what was set aside some was taken";
  for (const int i : {5, 6}) EXPECT_EQ(bodies[static_cast<size_t>(i)]->reserved_bytes + bodies[static_cast<size_t>(i)]->sealing_reserved_bytes, 0u) << i;
  EXPECT_FALSE(step(/*waited_for=*/true)) << "it was tried a moment ago";
  on_call = {};
  clock.advance_ns(30 * kSecond);
  EXPECT_TRUE(step(/*waited_for=*/true));
  EXPECT_EQ(left_in(packs[0]), 0u);
}

TEST_F(CompactorTest, WhatIsDamagedGoesIntoQuarantineAndTheRestMoves) {
  for (const int i : {0, 1, 2, 3, 4}) remove(i);
  auto file = volume->open(extents.path(packs[0], PlaceKind::kPacked), {.writable = true});
  ASSERT_TRUE(file);
  for (const int i : {5, 6}) {  // they are not in RAM
    const auto lock = bodies[static_cast<size_t>(i)]->lock();
    bodies[static_cast<size_t>(i)]->units.clear();
  }
  const auto wrong = bytes_of(kBlockBytes, 77);
  const std::span<const std::byte> pieces[] = {wrong};
  ASSERT_TRUE((*file)->write(pieces, place(ids[5]).offset));
  leave_room(kMiB);
  EXPECT_TRUE(step());
  EXPECT_TRUE(bodies[5]->base.quarantined);
  EXPECT_NE(pack_of(ids[6]), packs[0]);
  EXPECT_TRUE(holds(bodies[6], bytes_of(kBody, 6)));
}

}  // namespace compactor_test
}  // namespace kvcachefs
