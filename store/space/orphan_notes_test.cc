#include "store/space/orphan_notes.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/index/testing/fake_index.h"

namespace kvcachefs {
namespace orphan_notes_test {

constexpr uint32_t kSweptEpoch = 4;
constexpr ExtentId kOldPack{2, 1}, kOldSolo{3, 1}, kNewSolo{kSweptEpoch + 1, 1};

FreedPlace freed(ExtentId extent, PlaceKind kind, uint64_t length = kMiB) { return {ObjectId{5}, {kind, extent, kBlockBytes, length}}; }

class OrphanNotesTest : public ::testing::Test {
 protected:
  // Like a start, from an index that remembers `extents`.
  void start(std::vector<Leftovers::Extent> extents = {}, bool in_packs = false) {
    index_.leftovers_told = Leftovers{kSweptEpoch, in_packs, std::move(extents)};
    notes_.take_leftovers(index_);
    index_.leftovers_told.reset();
  }
  Leftovers told(std::span<const FreedPlace> taken = {}) {
    notes_.note_leftovers(index_, taken);
    Leftovers told = index_.leftovers_told.value_or(Leftovers());
    std::ranges::sort(told.extents, {}, &Leftovers::Extent::id);
    return told;
  }

  Space space_;
  DeadSpace dead_{space_};
  FakeIndex index_;
  OrphanNotes notes_{dead_, space_};
};

TEST_F(OrphanNotesTest, AnIndexThatRemembersNothingLeavesAllEpochsToBeListed) {
  notes_.take_leftovers(index_);
  EXPECT_EQ(notes_.swept_epoch(), 0u);
  EXPECT_FALSE(notes_.extents_due());
  EXPECT_FALSE(notes_.packs_unswept());
  EXPECT_EQ(told(), Leftovers());
}

TEST_F(OrphanNotesTest, WhatIsNotSweptIsRememberedFromLifeToLife) {
  start({{kOldSolo, PlaceKind::kSolo}}, /*in_packs=*/true);
  EXPECT_TRUE(notes_.extents_due());
  EXPECT_EQ(told(), (Leftovers{kSweptEpoch, true, {{kOldSolo, PlaceKind::kSolo}}}));
  EXPECT_TRUE(notes_.take_extents_due());
  EXPECT_FALSE(notes_.extents_due());
  EXPECT_EQ(told().extents.size(), 1u) << "looked at, and not removed";
}

// After an unclean end all epochs are looked at; a clean end names what it had to leave.
TEST_F(OrphanNotesTest, ACleanEndNamesWhatItLeavesOfItsOwnEpoch) {
  const ExtentId own{kSweptEpoch + 1, 3};
  start();
  dead_.put_back({freed(own, PlaceKind::kSolo)});
  EXPECT_TRUE(told().extents.empty());
  notes_.note_leftovers(index_, {}, {}, /*ends=*/true);
  EXPECT_EQ(index_.leftovers_told->extents, (std::vector<Leftovers::Extent>{{own, PlaceKind::kSolo}}));
  EXPECT_FALSE(index_.leftovers_told->unlisted);
}

TEST_F(OrphanNotesTest, WhatPeersMayReadIsRememberedByObject) {
  const auto placed = [](uint64_t object) { return FreedPlace{ObjectId{object}, {PlaceKind::kPacked, kOldPack, object * kMiB, kMiB}, {4, 1, object}}; };
  const auto but_7 = [](const FreedPlace& freed) { return freed.object != ObjectId{7}; };
  index_.position_told = {4, 1, 100};
  index_.put_extent(kOldPack, {PlaceKind::kPacked, kMiB, 1, {}});
  const std::vector<FreedPlace> taken{placed(6), placed(7)};
  dead_.put_back({placed(8), {ObjectId{}, {PlaceKind::kPacked, kOldPack, 0, kMiB}}, {ObjectId{9}, {PlaceKind::kInline, {}, 0, 10}, {4, 1, 9}}});
  start();
  EXPECT_FALSE(notes_.places_known());
  notes_.note_leftovers(index_, taken, but_7);
  EXPECT_EQ(index_.leftovers_told->held, (std::vector{placed(6), placed(8)}));
  EXPECT_EQ(index_.leftovers_told->held_until, JournalPosition{}) << "of the life before more may be read";
  notes_.now_places_are_known();
  notes_.note_leftovers(index_, taken, {});
  EXPECT_EQ(index_.leftovers_told->held_until, JournalPosition{}) << "nobody knows what is read";
  EXPECT_TRUE(index_.leftovers_told->held.empty());
  notes_.note_leftovers(index_, taken, but_7);
  EXPECT_EQ(index_.leftovers_told->held_until, index_.position_told);
  OrphanNotes next{dead_, space_};
  EXPECT_EQ(next.take_leftovers(index_), (std::vector{placed(6), placed(8)}));
  EXPECT_TRUE(next.places_known());
  index_.leftovers_told.reset();
  EXPECT_TRUE(next.take_leftovers(index_).empty());
  EXPECT_FALSE(next.places_known()) << "an index made anew";
}

TEST_F(OrphanNotesTest, OfMoreThanItRemembersByObjectSomeAreHeldAsAWhole) {
  const auto all = [](const FreedPlace&) { return true; };
  index_.position_told = {4, 1, 100};
  std::vector<FreedPlace> taken;
  for (uint64_t i = 1; i <= OrphanNotes::kMostHeld + 1; ++i) taken.push_back({ObjectId{i}, {PlaceKind::kPacked, kOldPack, i * kBlockBytes, 1}, {4, 1, 9}});
  notes_.now_places_are_known();
  notes_.note_leftovers(index_, taken, all);
  EXPECT_EQ(index_.leftovers_told->held.size(), OrphanNotes::kMostHeld);
  EXPECT_EQ(index_.leftovers_told->held_until, JournalPosition{});
  taken.pop_back();
  notes_.note_leftovers(index_, taken, all);
  EXPECT_EQ(index_.leftovers_told->held_until, index_.position_told);
}

TEST_F(OrphanNotesTest, EpochsThatWereNotListedAreListedByTheNextLife) {
  start();
  notes_.doubt_epochs();
  EXPECT_TRUE(told().unlisted);
  index_.leftovers_told = told();
  OrphanNotes next{dead_, space_};
  next.take_leftovers(index_);
  EXPECT_TRUE(next.unlisted());
  next.extents_swept({}, kSweptEpoch + 1, 0);
  EXPECT_FALSE(next.unlisted());
}

TEST_F(OrphanNotesTest, AnIndexMadeAnewDoesNotForgetWhatTheDamagedOneRemembered) {
  start({{kOldSolo, PlaceKind::kSolo}}, true);
  notes_.take_leftovers(FakeIndex());
  EXPECT_EQ(notes_.swept_epoch(), kSweptEpoch);
  EXPECT_EQ(notes_.extents().size(), 1u);
  EXPECT_TRUE(notes_.packs_unswept());
}

TEST_F(OrphanNotesTest, WhatIsGivenUpIsNamedWhereItsEpochIsNotListed) {
  start();
  const FreedPlace taken[] = {freed(kOldPack, PlaceKind::kPacked, 0), freed(kNewSolo, PlaceKind::kSolo)};
  dead_.add({}, freed(kOldSolo, PlaceKind::kSolo).place);
  EXPECT_EQ(told(taken), (Leftovers{kSweptEpoch, false, {{kOldPack, PlaceKind::kPacked}, {kOldSolo, PlaceKind::kSolo}}}));
}

TEST_F(OrphanNotesTest, APackWithBodiesGoesWithItsLastOne) {
  start();
  index_.put_extent(kOldPack, {.kind = PlaceKind::kPacked, .live_bytes = kMiB, .bodies = 1, .object = {}});
  const FreedPlace taken[] = {freed(kOldPack, PlaceKind::kPacked)};
  EXPECT_EQ(told(taken), (Leftovers{kSweptEpoch, true, {}})) << "but for its dead range";
}

TEST_F(OrphanNotesTest, WhatWasMeasuredCountsUntilItIsSweptBesideWhatIsDead) {
  dead_.add({}, freed(kOldSolo, PlaceKind::kSolo).place);  // 1 MiB
  notes_.measured(2 * kMiB, 2 * kMiB);
  EXPECT_EQ(space_.orphaned_bytes(), 4 * kMiB);
  EXPECT_EQ(space_.physical_bytes(), 5 * kMiB);
  notes_.packs_left(kMiB);
  EXPECT_EQ(space_.orphaned_bytes(), 3 * kMiB);
  notes_.extents_swept({{kOldSolo, PlaceKind::kSolo}}, std::nullopt, kMiB);  // one could not be removed
  EXPECT_EQ(space_.orphaned_bytes(), 2 * kMiB) << "the dead extent was none of those that went";
  notes_.packs_swept();
  EXPECT_EQ(space_.orphaned_bytes(), kMiB);
  notes_.extents_swept({}, std::nullopt, 0);
  EXPECT_EQ(space_.orphaned_bytes(), 0u);
  EXPECT_EQ(space_.physical_bytes(), kMiB);
}

TEST_F(OrphanNotesTest, DeadRangesOfPacksAreLookedForAsLongAsThereAreAny) {
  start();
  EXPECT_FALSE(told().in_packs);
  dead_.keep_unpunched(kNewSolo, kMiB);
  EXPECT_TRUE(told().in_packs);
  dead_.removed(kNewSolo);
  EXPECT_FALSE(told().in_packs);
  dead_.add({}, freed(kNewSolo, PlaceKind::kPacked).place);
  EXPECT_TRUE(told().in_packs);
  static_cast<void>(dead_.take());
  notes_.doubt_packs();
  EXPECT_TRUE(told().in_packs);
  notes_.packs_swept();
  EXPECT_TRUE(notes_.changed());
  EXPECT_FALSE(told().in_packs);
  EXPECT_FALSE(notes_.changed());
}

TEST_F(OrphanNotesTest, ASweepLeavesWhatCouldNotBeRemoved) {
  start({{kOldPack, PlaceKind::kPacked}, {kOldSolo, PlaceKind::kSolo}});
  notes_.extents_swept({{kOldSolo, PlaceKind::kSolo}}, std::nullopt, 0);
  EXPECT_TRUE(notes_.changed());
  EXPECT_EQ(told(), (Leftovers{kSweptEpoch, false, {{kOldSolo, PlaceKind::kSolo}}}));
  notes_.extents_swept({}, kSweptEpoch + 2, 0);
  EXPECT_EQ(told(), (Leftovers{kSweptEpoch + 2, false, {}}));
}

TEST_F(OrphanNotesTest, ManyExtentsAreListedAgainInsteadOfNamed) {
  start();
  constexpr uint64_t kMany = 32 * 1024 + 1;
  std::vector<FreedPlace> taken;
  for (uint64_t seq = 1; seq < kMany; ++seq) taken.push_back(freed({3, seq}, PlaceKind::kSolo));
  EXPECT_EQ(told(taken).extents.size(), kMany - 1);
  taken.push_back(freed({2, 1}, PlaceKind::kSolo));
  EXPECT_EQ(told(taken), (Leftovers{1, false, {}, true})) << "from the oldest of them on";
}

}  // namespace orphan_notes_test
}  // namespace kvcachefs
