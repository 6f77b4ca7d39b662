#include "store/space/reserve.h"

#include <cerrno>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace reserve_test {

constexpr const char* kPath = "RESERVE";
constexpr uint64_t kDiskBytes = 64 * kMiB, kBytes = 4 * kMiB;

class ReserveTest : public ::testing::Test {
 protected:
  uint64_t free_bytes() const { return disk_->space()->available_bytes; }
  void fill(Reserve& reserve) { ASSERT_TRUE(reserve.refill(kBytes, free_bytes())); }

  std::shared_ptr<SimVolume> disk_ = make_sim_volume({.capacity_bytes = kDiskBytes});
};

TEST_F(ReserveTest, HoldsBlocksAndGivesThemBackBitByBit) {
  Reserve reserve(disk_, kPath);
  const uint64_t before = free_bytes();
  EXPECT_FALSE(reserve.give(kMiB)) << "nothing there";
  EXPECT_FALSE(reserve.is_cut());
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
  EXPECT_LE(free_bytes(), before - kBytes);
  EXPECT_TRUE(reserve.give(kMiB));
  EXPECT_TRUE(reserve.is_cut());
  EXPECT_EQ(reserve.held_bytes(), kBytes - kMiB);
  EXPECT_GE(free_bytes(), before - kBytes + kMiB);
  EXPECT_TRUE(reserve.give(kBytes)) << "what there is";
  EXPECT_FALSE(reserve.give(1));
  EXPECT_GE(free_bytes() + kBlockBytes, before);
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
  EXPECT_FALSE(reserve.is_cut());
}

TEST_F(ReserveTest, TakesNothingWhereThereIsLittle) {
  Reserve reserve(disk_, kPath);
  ASSERT_TRUE(reserve.refill(kBytes, 2 * kBytes));
  EXPECT_EQ(reserve.held_bytes(), 0u);
  EXPECT_FALSE(disk_->info(kPath));
}

TEST_F(ReserveTest, IsMadeSmallerWithoutBeingTakenForCut) {
  Reserve reserve(disk_, kPath);
  fill(reserve);
  ASSERT_TRUE(reserve.shrink(kBytes / 2));
  EXPECT_EQ(reserve.held_bytes(), kBytes / 2);
  EXPECT_FALSE(reserve.is_cut());
  EXPECT_EQ(Reserve(disk_, kPath).held_bytes(), kBytes / 2);
  ASSERT_TRUE(reserve.shrink(kBytes));
  EXPECT_EQ(reserve.held_bytes(), kBytes / 2) << "that is no growing";
}

TEST_F(ReserveTest, IsGivenBackAsAWhole) {
  const uint64_t before = free_bytes();
  Reserve reserve(disk_, kPath);
  EXPECT_TRUE(reserve.give_back()) << "there is none";
  fill(reserve);
  ASSERT_TRUE(reserve.give_back());
  EXPECT_EQ(reserve.held_bytes(), 0u);
  EXPECT_FALSE(disk_->info(kPath));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_FALSE(reserve.give(kMiB));
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
}

TEST_F(ReserveTest, IsFoundByTheNextMount) {
  {
    Reserve reserve(disk_, kPath);
    fill(reserve);
  }
  Reserve again(disk_, kPath);
  EXPECT_EQ(again.held_bytes(), kBytes);
  EXPECT_TRUE(again.give(kMiB));
}

TEST_F(ReserveTest, IsWrittenWhereBlocksCannotBeAllocated) {
  auto volume = make_fault_volume(disk_, [](const VolumeCall& call) {
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kAllocate ? EOPNOTSUPP : 0};
  });
  Reserve reserve(volume, kPath);
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
  EXPECT_EQ(disk_->info(kPath)->allocated_bytes, kBytes);
}

TEST_F(ReserveTest, ThatFailsToGrowLeavesNothingAndIsTriedAgain) {
  bool full = true;
  auto volume = make_fault_volume(disk_, [&](const VolumeCall& call) {
    return Fault{.sys_errno = full && call.kind == VolumeCall::Kind::kAllocate ? EDQUOT : 0};
  });
  Reserve reserve(volume, kPath);
  EXPECT_EQ(reserve.refill(kBytes, free_bytes()).error().code, Code::kNoSpace);
  EXPECT_EQ(reserve.held_bytes(), 0u);
  EXPECT_FALSE(disk_->info(kPath));
  full = false;
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
}

// Like btrfs at its quota: truncating a file takes room there.
TEST_F(ReserveTest, ThatCannotBeCutIsGivenUpWhole) {
  bool full = false;
  auto volume = make_fault_volume(disk_, [&](const VolumeCall& call) {
    return Fault{.sys_errno = full && call.kind == VolumeCall::Kind::kTruncate ? EDQUOT : 0};
  });
  Reserve reserve(volume, kPath);
  fill(reserve);
  const uint64_t before = free_bytes();
  full = true;
  EXPECT_TRUE(reserve.give(kMiB));
  EXPECT_EQ(reserve.held_bytes(), 0u);
  EXPECT_TRUE(reserve.is_cut());
  EXPECT_GE(free_bytes(), before + kBytes);
  EXPECT_FALSE(reserve.give(kMiB));
  full = false;
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
}

TEST_F(ReserveTest, ThatIsMissingIsNoHarm) {
  Reserve reserve(disk_, kPath);
  fill(reserve);
  ASSERT_TRUE(disk_->remove_file(kPath));  // by hand
  EXPECT_FALSE(reserve.give(kMiB));
  EXPECT_EQ(reserve.held_bytes(), 0u);
  fill(reserve);
  EXPECT_EQ(reserve.held_bytes(), kBytes);
}

}  // namespace reserve_test
}  // namespace kvcachefs
