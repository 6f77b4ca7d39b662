// Leftovers of an earlier run on a volume in memory, and which of them are removed.
#include "store/upkeep/orphan_sweep.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "store/base/units.h"
#include "store/index/testing/fake_index.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace orphan_sweep_test {

class OrphanSweepTest : public ::testing::Test {
 protected:
  explicit OrphanSweepTest(bool punch_hole = true) : volume(make_sim_volume({.punch_hole = punch_hole, .direct_io = false})) {
    Extents earlier(volume, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8);
    named = make(earlier, PlaceKind::kPacked);
    nameless = make(earlier, PlaceKind::kSolo);
    in_hand = make(earlier, PlaceKind::kSolo);
    ExtentUsage usage;
    usage.kind = PlaceKind::kPacked;
    usage.live_bytes = kBlockBytes;
    usage.bodies = 1;
    index.put_extent(named, usage);
  }
  static ExtentId make(Extents& extents, PlaceKind kind) {
    auto made = extents.make(kind);
    EXPECT_TRUE(made) << made.error().message;
    const std::vector<std::byte> bytes(16 * kBlockBytes, std::byte{1});
    const std::span<const std::byte> piece(bytes);
    EXPECT_TRUE(made->file->write({&piece, 1}, kBlockBytes));
    return made->id;
  }
  OrphanSweep make_sweep(uint32_t kept_epoch = 0) {
    return OrphanSweep({*volume, identity, extents, index, dead, orphans, counters, clock,
                        [this]() -> Status {
                          ++syncs;
                          return sync_result;
                        },
                        false, kept_epoch});
  }
  bool is_there(ExtentId id, PlaceKind kind) { return extents.info(id, kind).has_value(); }

  std::shared_ptr<Volume> volume;
  const FileIdentity identity{.volume_uuid = {}, .node = "test", .epoch = 3};
  Extents extents{volume, identity, 8};
  FakeIndex index;
  Space space;
  DeadSpace dead{space};
  OrphanNotes orphans{dead, space};
  Counters counters;
  ManualClock clock{1};
  int syncs = 0;
  Status sync_result;
  ExtentId named, nameless, in_hand;
};

class OrphanSweepWithoutPunchTest : public OrphanSweepTest {
 protected:
  OrphanSweepWithoutPunchTest() : OrphanSweepTest(/*punch_hole=*/false) {}
};

TEST_F(OrphanSweepTest, WhatNoRecordNamesCountsUntilItIsRemoved) {
  OrphanSweep sweep = make_sweep();
  sweep.count(/*unclean=*/true);
  EXPECT_GE(space.orphaned_bytes(), 32 * kBlockBytes);
  EXPECT_TRUE(sweep.is_due());
  const std::vector<FreedPlace> dead_now = {{ObjectId{7}, {PlaceKind::kSolo, in_hand, 0, kBlockBytes}}};
  sweep.sweep_extents(dead_now);
  EXPECT_EQ(syncs, 1) << "the committer may have known one of them";
  EXPECT_TRUE(is_there(named, PlaceKind::kPacked));
  EXPECT_FALSE(is_there(nameless, PlaceKind::kSolo));
  EXPECT_TRUE(is_there(in_hand, PlaceKind::kSolo)) << "it may be open yet, and is given back by who has it";
  EXPECT_EQ(counters.swept_files, 1u);
  EXPECT_EQ(space.orphaned_bytes(), 0u);
  EXPECT_EQ(orphans.swept_epoch(), 2u);
  sweep.sweep_extents({});
  EXPECT_TRUE(is_there(in_hand, PlaceKind::kSolo)) << "once";
}

// Space already known to be dead is counted there, wherever it lies, and hides no other space.
TEST_F(OrphanSweepTest, WhatPacksHoldCountsUntilTheyAreSweptWhateverWasKnownToBeDead) {
  OrphanSweep sweep = make_sweep();
  const uint64_t nameless_bytes = extents.info(nameless, PlaceKind::kSolo)->allocated_bytes;
  const uint64_t in_hand_bytes = extents.info(in_hand, PlaceKind::kSolo)->allocated_bytes;
  dead.add({}, {PlaceKind::kSolo, in_hand, 0, in_hand_bytes});  // a replayed removal: the reclaimer handles it
  dead.add({}, {PlaceKind::kPacked, named, 2 * kBlockBytes, 4 * kBlockBytes});
  orphans.doubt_packs();
  sweep.count(/*unclean=*/true);
  constexpr uint64_t kUnknownBytes = (16 - 1 - 4) * kBlockBytes;  // of the pack, without live blocks and those in hand
  EXPECT_EQ(space.orphaned_bytes(), nameless_bytes + kUnknownBytes);
  sweep.sweep_extents({});
  EXPECT_FALSE(is_there(nameless, PlaceKind::kSolo));
  EXPECT_TRUE(is_there(in_hand, PlaceKind::kSolo));
  EXPECT_EQ(space.orphaned_bytes(), kUnknownBytes) << "the pack was not swept yet";
}

TEST_F(OrphanSweepWithoutPunchTest, DeadRangesOfPacksHideNoExtents) {
  OrphanSweep sweep = make_sweep();
  dead.add({}, {PlaceKind::kPacked, named, 2 * kBlockBytes, 8 * kBlockBytes});
  sweep.count(/*unclean=*/true);
  EXPECT_EQ(space.orphaned_bytes(), extents.info(nameless, PlaceKind::kSolo)->allocated_bytes + extents.info(in_hand, PlaceKind::kSolo)->allocated_bytes);
}

TEST_F(OrphanSweepTest, AfterACleanEndNothingIsLookedFor) {
  OrphanSweep sweep = make_sweep();
  sweep.count(/*unclean=*/false);
  EXPECT_FALSE(sweep.is_due());
  sweep.sweep_extents({});
  EXPECT_TRUE(is_there(nameless, PlaceKind::kSolo));
  EXPECT_EQ(space.orphaned_bytes(), 0u);
}

TEST_F(OrphanSweepTest, WhereRecordsAreLostNothingIsRemovedInThisLifeNorInLaterOnes) {
  for (int life = 0; life < 2; ++life) {
    OrphanSweep sweep = make_sweep(/*kept_epoch=*/2);
    orphans.doubt_packs();
    sweep.count(/*unclean=*/true);
    EXPECT_EQ(space.orphaned_bytes(), 0u) << "nothing is coming back";
    EXPECT_GE(space.physical_bytes(), 32 * kBlockBytes) << "it counts";
    sweep.sweep_extents({});
    EXPECT_TRUE(is_there(nameless, PlaceKind::kSolo));
    while (sweep.sweep_packs() == OrphanSweep::Packs::kGoOn) {}
    EXPECT_EQ(counters.punched_ranges, 0u);
    EXPECT_FALSE(sweep.is_left());
  }
}

TEST_F(OrphanSweepTest, OfEpochsBehindThoseWithLostRecordsWhatNobodyNamesGoes) {
  Extents later(volume, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 2}, 8);
  const ExtentId of_later = make(later, PlaceKind::kSolo);
  OrphanSweep sweep = make_sweep(/*kept_epoch=*/1);
  sweep.count(/*unclean=*/true);
  sweep.sweep_extents({});
  EXPECT_TRUE(is_there(nameless, PlaceKind::kSolo));
  EXPECT_FALSE(is_there(of_later, PlaceKind::kSolo));
}

// The index knew only bodies that were given up, but a lost record may have put others there later.
TEST_F(OrphanSweepTest, APackOfAKeptEpochStaysThoughItWasGivenUp) {
  const ExtentId pack = make(*std::make_unique<Extents>(volume, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 2}, 8), PlaceKind::kPacked);
  Leftovers left;
  left.extents = {{pack, PlaceKind::kPacked}, {nameless, PlaceKind::kSolo}};
  index.set_leftovers(left);
  orphans.take_leftovers(index);
  OrphanSweep sweep = make_sweep(/*kept_epoch=*/2);
  sweep.count(/*unclean=*/false);
  sweep.sweep_extents({});
  EXPECT_TRUE(is_there(pack, PlaceKind::kPacked));
  EXPECT_FALSE(is_there(nameless, PlaceKind::kSolo)) << "it had one body, and that was given up";
  ASSERT_EQ(orphans.extents().size(), 1u);
  EXPECT_EQ(orphans.extents()[0].id, pack);
}

TEST_F(OrphanSweepTest, WithoutASyncPointNothingIsRemoved) {
  OrphanSweep sweep = make_sweep();
  sweep.count(/*unclean=*/true);
  sync_result = fail(Code::kIo, "the journal takes nothing");
  sweep.sweep_extents({});
  EXPECT_TRUE(is_there(nameless, PlaceKind::kSolo));
  EXPECT_GT(space.orphaned_bytes(), 0u);
}

}  // namespace orphan_sweep_test
}  // namespace kvcachefs
