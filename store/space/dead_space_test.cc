#include "store/space/dead_space.h"

#include <thread>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/index/testing/fake_index.h"

namespace kvcachefs {
namespace dead_space_test {

constexpr uint64_t kLimit = 256 * kMiB;
constexpr ExtentId kPack{1, 7}, kOtherPack{1, 8}, kSolo{1, 9}, kRawFile{1, 10};

Place packed(ExtentId pack, uint64_t offset, uint64_t length) { return {PlaceKind::kPacked, pack, offset, length}; }
Place solo(uint64_t length) { return {PlaceKind::kSolo, kSolo, 0, length}; }

class DeadSpaceTest : public ::testing::Test {
 protected:
  void SetUp() override { space_.configure(kLimit, 0); }

  Space space_;
  DeadSpace dead_{space_};
  FakeIndex index_;
  std::map<ExtentId, uint64_t> allocated_;  // of files that are there
  int looked_ = 0;
  DeadSpace::ExtentInfo info_ = [this](ExtentId id, PlaceKind) -> Result<FileInfo> {
    ++looked_;
    auto file = allocated_.find(id);
    if (file == allocated_.end()) return fail(Code::kNotFound, "no such file");
    FileInfo info;
    info.allocated_bytes = file->second;
    return info;
  };
};

TEST_F(DeadSpaceTest, WhatWasWrittenForNothingIsDeadInWholeBlocks) {
  const uint64_t hopes = space_.hopes();
  dead_.add({}, packed(kPack, kBlockBytes, 100));
  dead_.add({}, {PlaceKind::kInline, {}, 0, 50});
  EXPECT_EQ(dead_.bytes(), kBlockBytes);
  EXPECT_EQ(space_.dead_bytes(), kBlockBytes);
  EXPECT_EQ(space_.hopes(), hopes + 1) << "it may come back; a body in a record has no blocks";
  EXPECT_EQ(dead_.take().size(), 1u);
}

TEST_F(DeadSpaceTest, ABatchMovesReservedToLiveAndLiveToDead) {
  space_.set_live(8 * kMiB);
  ASSERT_TRUE(space_.try_reserve(kMiB));
  space_.add_leaving(ObjectId{5}, 2 * kMiB);
  const FreedPlace freed[] = {{ObjectId{5}, solo(2 * kMiB)}};
  dead_.journaled(freed, 7 * kMiB, kMiB);
  EXPECT_EQ(space_.live_bytes(), 7 * kMiB);
  EXPECT_EQ(space_.dead_bytes(), 2 * kMiB);
  EXPECT_EQ(space_.reserved_bytes(), 0u);
  EXPECT_EQ(space_.free_bytes(), kLimit - 7 * kMiB) << "dead counts as free once, not also as leaving";
}

TEST_F(DeadSpaceTest, WhatIsTakenStaysDeadUntilItIsGivenBack) {
  dead_.add({}, packed(kPack, kBlockBytes, kMiB));
  dead_.add({}, solo(kMiB));
  auto taken = dead_.take();
  EXPECT_FALSE(dead_.any());
  EXPECT_EQ(space_.dead_bytes(), 2 * kMiB);
  dead_.put_back(std::move(taken));
  EXPECT_TRUE(dead_.any());
  EXPECT_EQ(dead_.bytes(), 2 * kMiB) << "not twice";
  taken = dead_.take();
  taken.resize(1);
  EXPECT_EQ(dead_.settle(std::move(taken)), kMiB);
  EXPECT_TRUE(dead_.any());
  EXPECT_EQ(space_.dead_bytes(), kMiB);
}

TEST_F(DeadSpaceTest, WhatDiesDuringAReclaimIsNotCountedAsGivenBack) {
  dead_.add({}, solo(kMiB));
  static_cast<void>(dead_.take());
  dead_.add({}, packed(kPack, kBlockBytes, 2 * kMiB));
  EXPECT_EQ(dead_.settle({}), kMiB);
  EXPECT_EQ(space_.dead_bytes(), 2 * kMiB);
}

TEST_F(DeadSpaceTest, UnpunchedRangesComeBackWithTheWholePack) {
  dead_.add({}, packed(kPack, kBlockBytes, kMiB));
  static_cast<void>(dead_.take());
  dead_.keep_unpunched(kPack, kMiB);
  EXPECT_EQ(dead_.settle({}), 0u) << "nothing came back";
  EXPECT_TRUE(dead_.has_unpunched());
  EXPECT_EQ(space_.dead_bytes(), kMiB);
  dead_.add({}, packed(kPack, 2 * kMiB, kMiB));
  static_cast<void>(dead_.take());
  dead_.removed(kOtherPack);
  dead_.removed(kPack);
  EXPECT_EQ(dead_.settle({}), 2 * kMiB);
  EXPECT_FALSE(dead_.has_unpunched());
  EXPECT_EQ(space_.dead_bytes(), 0u);
}

TEST_F(DeadSpaceTest, AClosedPackIsLookedAtOnceMore) {
  dead_.pack_opened(kPack);
  EXPECT_TRUE(dead_.is_open(kPack));
  dead_.packs_closed(std::vector{kPack, kOtherPack});
  EXPECT_FALSE(dead_.is_open(kPack));
  EXPECT_FALSE(dead_.mentions(kPack)) << "to look at it is no reason to keep it";
  dead_.look_again(kPack);
  EXPECT_EQ(dead_.take().size(), 3u);
  EXPECT_EQ(space_.dead_bytes(), 0u);
}

TEST_F(DeadSpaceTest, MentionsWhatDiedAndIsNotTaken) {
  dead_.add({}, packed(kPack, kBlockBytes, 100));
  EXPECT_TRUE(dead_.mentions(kPack));
  EXPECT_FALSE(dead_.mentions(kOtherPack));
  static_cast<void>(dead_.take());
  EXPECT_FALSE(dead_.mentions(kPack));
}

TEST_F(DeadSpaceTest, AStartForgetsWhatWasReclaimedBefore) {
  const FreedPlace freed[] = {{ObjectId{5}, packed(kPack, kBlockBytes, 4 * kMiB)},
                              {ObjectId{6}, packed(kPack, 8 * kMiB, 4 * kMiB)},
                              {ObjectId{7}, solo(kMiB)}};
  dead_.found(freed);
  EXPECT_EQ(space_.dead_bytes(), 9 * kMiB);
  allocated_[kPack] = 10 * kMiB;  // and the solo extent is gone
  index_.put_extent(kPack, {.kind = PlaceKind::kPacked, .live_bytes = 7 * kMiB, .bodies = 1, .object = {}});
  EXPECT_TRUE(dead_.forget_reclaimed(index_, /*can_punch=*/true, info_));
  EXPECT_EQ(looked_, 2) << "once for each extent";
  EXPECT_EQ(dead_.bytes(), 3 * kMiB) << "no more than what has blocks and is not live";
  EXPECT_EQ(space_.dead_bytes(), 3 * kMiB);
  EXPECT_EQ(dead_.take().size(), 2u);
}

TEST_F(DeadSpaceTest, AStartWithNothingToGiveBackSaysSo) {
  EXPECT_FALSE(dead_.forget_reclaimed(index_, true, info_));
  dead_.found(std::vector{FreedPlace{ObjectId{5}, solo(kMiB)}});
  EXPECT_FALSE(dead_.forget_reclaimed(index_, true, info_));
  EXPECT_FALSE(dead_.any());
  allocated_[kRawFile] = kMiB;
  dead_.found(std::vector{FreedPlace{ObjectId{5}, {PlaceKind::kRaw, kRawFile, 0, 0}}});
  EXPECT_TRUE(dead_.forget_reclaimed(index_, true, info_)) << "its record tells no length";
}

TEST_F(DeadSpaceTest, WhatIsFoundTwiceCountsOnce) {
  const FreedPlace freed[] = {{ObjectId{5}, solo(kMiB)}};
  dead_.found(freed);
  dead_.clear();
  dead_.found(freed);
  EXPECT_EQ(space_.dead_bytes(), kMiB);
}

TEST_F(DeadSpaceTest, WithoutPunchingAStartFindsWhatDiedInPacks) {
  dead_.found(std::vector{FreedPlace{ObjectId{5}, packed(kPack, kBlockBytes, 2 * kMiB)}});
  allocated_[kPack] = 10 * kMiB + kBlockBytes;
  allocated_[kOtherPack] = kMiB;
  index_.put_extent(kPack, {.kind = PlaceKind::kPacked, .live_bytes = 4 * kMiB, .bodies = 1, .object = {}});
  index_.put_extent(kOtherPack, {.kind = PlaceKind::kPacked, .live_bytes = kMiB, .bodies = 1, .object = {}});
  index_.put_extent(kSolo, {.kind = PlaceKind::kSolo, .live_bytes = kMiB, .bodies = 1, .object = {}});
  index_.committed_extents[{1, 11}] = {.kind = PlaceKind::kPacked, .live_bytes = kMiB, .bodies = 1, .object = {}};  // died since
  dead_.forget_reclaimed(index_, /*can_punch=*/false, info_);
  EXPECT_EQ(dead_.bytes(), 2 * kMiB);
  EXPECT_TRUE(dead_.has_unpunched());
  EXPECT_EQ(space_.dead_bytes(), 6 * kMiB) << "what is to be looked at again counts once";
}

TEST_F(DeadSpaceTest, DfNeverRunsBackwards) {  // dead and live move under one lock, whoever reclaims meanwhile
  constexpr int kBatches = 2000;
  space_.set_live(kBatches * kBlockBytes);
  std::thread reclaimer([&] {
    for (int i = 0; i < kBatches; ++i) {
      static_cast<void>(dead_.take());
      dead_.settle({});
    }
  });
  std::thread committer([&] {
    for (int i = 1; i <= kBatches; ++i)
      dead_.journaled(std::vector{FreedPlace{ObjectId{}, packed(kPack, i * kBlockBytes, kBlockBytes)}}, (kBatches - i) * kBlockBytes, 0);
  });
  uint64_t free_bytes = space_.free_bytes();
  for (int i = 0; i < kBatches; ++i) {
    const uint64_t now = space_.free_bytes();
    EXPECT_GE(now, free_bytes);
    free_bytes = now;
  }
  reclaimer.join();
  committer.join();
  static_cast<void>(dead_.take());
  dead_.settle({});
  EXPECT_EQ(space_.physical_bytes(), 0u);
}

}  // namespace dead_space_test
}  // namespace kvcachefs
