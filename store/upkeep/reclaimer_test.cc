#include "store/upkeep/reclaimer.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/index/testing/fake_index.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace reclaimer_test {

constexpr uint64_t kBody = 64 * kKiB;

class ReclaimerTest : public ::testing::Test {
 protected:
  // A pack with live bodies that the index knows; its bodies 0, 1, 2 ... lie one behind the other.
  ExtentId make_pack(uint64_t live_bytes) {
    auto made = extents_.make(PlaceKind::kPacked);
    EXPECT_TRUE(made);
    ExtentUsage usage;
    usage.kind = PlaceKind::kPacked;
    usage.live_bytes = live_bytes;
    usage.bodies = 1;
    if (live_bytes > 0) index_.put_extent(made->id, usage);
    return made->id;
  }
  static FreedPlace body(ExtentId pack, uint64_t number, uint64_t object = 0) {
    return {ObjectId{object}, {PlaceKind::kPacked, pack, kBlockBytes + number * kBody, kBody}};
  }
  Reclaimer::Outcome reclaim(std::vector<FreedPlace> places, const Reclaimer::Amount& amount = {}) {
    dead_.found(places);
    return reclaimer_->reclaim(dead_.take(), amount);
  }
  void use(unsigned threads, bool can_punch = true) {
    reclaimer_ = std::make_unique<Reclaimer>(
        dead_, extents_, index_, counters_, clock_,
        Reclaimer::Users{[this](const FreedPlace& freed) { return needed_.contains(freed.object.value); }, [this] { return commits_; },
                         [this](const FreedPlace& freed) { return held_.contains(freed.object.value); }, {},
                         [this](ExtentId pack) { return kept_.contains(pack); }},
        can_punch, threads);
  }
  void SetUp() override { use(0); }
  bool is_there(ExtentId pack) { return extents_.info(pack, PlaceKind::kPacked).has_value(); }

  ManualClock clock_{1};
  Space space_;
  DeadSpace dead_{space_};
  FakeIndex index_;
  Counters counters_;
  std::set<uint64_t> needed_, held_;
  std::set<ExtentId> kept_;
  bool commits_ = false;
  int64_t punch_takes_ns_ = 0;
  int punch_errno_ = 0;
  std::mutex mutex_;
  std::vector<VolumeCall> punches_;
  Extents extents_{make_fault_volume(make_sim_volume(),
                                     [this](const VolumeCall& call) {
                                       if (call.kind != VolumeCall::Kind::kPunch) return Fault{};
                                       std::lock_guard lock(mutex_);
                                       punches_.push_back(call);
                                       clock_.advance_ns(punch_takes_ns_);
                                       return Fault{.sys_errno = punch_errno_};
                                     }),
                   FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
  std::unique_ptr<Reclaimer> reclaimer_;
};

TEST_F(ReclaimerTest, WhatIsHeldForOtherNodesStaysWithItsPack) {
  const ExtentId pack = make_pack(0);
  held_ = {8};
  const auto outcome = reclaim({body(pack, 0, 7), body(pack, 1, 8)});
  EXPECT_EQ(outcome.held_places, 1u);
  EXPECT_EQ(outcome.held_bytes, kBody);
  EXPECT_TRUE(is_there(pack));
  EXPECT_EQ(dead_.bytes(), kBody);
  held_.clear();
  EXPECT_EQ(reclaimer_->reclaim(dead_.take(), {}).held_places, 0u);
  EXPECT_FALSE(is_there(pack));
  EXPECT_EQ(dead_.bytes(), 0u);
}

TEST_F(ReclaimerTest, APackInWhichALostRecordMayNameMoreIsPunchedAndStays) {
  const ExtentId pack = make_pack(0);
  kept_ = {pack};
  reclaim({body(pack, 0, 7)});
  EXPECT_TRUE(is_there(pack));
  EXPECT_EQ(punches_.size(), 1u);
  EXPECT_EQ(dead_.bytes(), 0u);
  EXPECT_TRUE(dead_.take().empty()) << "nor is it looked at again";
}

TEST_F(ReclaimerTest, NeighboursArePunchedTogether) {
  const ExtentId pack = make_pack(kBody);
  reclaim({body(pack, 5), body(pack, 1), body(pack, 2), body(pack, 0)});
  ASSERT_EQ(punches_.size(), 2u);
  EXPECT_EQ(punches_[0].length, 3 * kBody);
  EXPECT_EQ(counters_.reclaimed_bytes, 4 * kBody);
  EXPECT_EQ(dead_.bytes(), 0u);
}

TEST_F(ReclaimerTest, WhatIsReadStillStaysAndParts) {
  const ExtentId pack = make_pack(kBody);
  needed_ = {7};
  const auto outcome = reclaim({body(pack, 0), body(pack, 1, 7), body(pack, 2)});
  EXPECT_EQ(punches_.size(), 2u);
  EXPECT_EQ(outcome.needed_bytes, kBody);
  EXPECT_EQ(dead_.bytes(), kBody);
  needed_.clear();
  reclaimer_->reclaim(dead_.take(), {});
  EXPECT_EQ(punches_.size(), 3u);
  EXPECT_EQ(dead_.bytes(), 0u);
}

TEST_F(ReclaimerTest, APackOfWhichNothingLivesIsRemoved) {
  const ExtentId pack = make_pack(0);
  reclaim({body(pack, 0), body(pack, 7)});
  EXPECT_FALSE(is_there(pack));
  EXPECT_TRUE(punches_.empty());
}

TEST_F(ReclaimerTest, NotWhileBatchesAreUnderWayOrAReaderIsThere) {
  const ExtentId committing = make_pack(0), read = make_pack(0);
  commits_ = true;
  reclaim({body(committing, 0)});
  EXPECT_TRUE(is_there(committing));
  EXPECT_TRUE(dead_.any()) << "it is looked at once more";
  commits_ = false;
  reclaimer_->reclaim(dead_.take(), {});
  EXPECT_FALSE(is_there(committing));
  needed_ = {7};
  reclaim({body(read, 0, 7), body(read, 1)});
  EXPECT_TRUE(is_there(read));
}

TEST_F(ReclaimerTest, TheLongestRangesComeToEnoughAndTheShortOnesAreLeft) {
  const ExtentId pack = make_pack(kBody), other = make_pack(kBody);
  const auto outcome = reclaim({body(pack, 0), body(pack, 2), body(pack, 3), body(pack, 4), body(other, 0), body(other, 1), body(other, 5)},
                               {.enough_bytes = 4 * kBody});
  EXPECT_EQ(punches_.size(), 2u) << "of three bodies, and of two";
  EXPECT_EQ(outcome.left_bytes, 2 * kBody);
  EXPECT_EQ(outcome.punched, 2u);
  EXPECT_EQ(outcome.punched_bytes, 5 * kBody);
  EXPECT_EQ(dead_.bytes(), 2 * kBody);
  reclaim({body(pack, 1)}, {.enough_bytes = 2 * kBody});
  ASSERT_EQ(punches_.size(), 3u);
  EXPECT_EQ(punches_[2].length, 2 * kBody) << "the neighbour died: one call for both";
}

TEST_F(ReclaimerTest, WhatTimeDoesNotAllowIsLeft) {
  const ExtentId pack = make_pack(kBody);
  punch_takes_ns_ = 10;
  const auto outcome = reclaim({body(pack, 0), body(pack, 2), body(pack, 4)}, {.most_ns = 15});
  EXPECT_TRUE(outcome.cut_short);
  EXPECT_EQ(punches_.size(), 2u);
  EXPECT_EQ(dead_.bytes(), kBody);
  reclaim({}, {.most_ns = 0});
  EXPECT_EQ(punches_.size(), 3u) << "something is done in any case";
  EXPECT_EQ(dead_.bytes(), 0u);
}

TEST_F(ReclaimerTest, AnErrorLeavesTheRestOfThatFile) {
  const ExtentId pack = make_pack(kBody);
  punch_errno_ = EIO;
  reclaim({body(pack, 0), body(pack, 2)});
  EXPECT_EQ(dead_.bytes(), 2 * kBody);
  punch_errno_ = 0;
  reclaim({});
  EXPECT_EQ(dead_.bytes(), 0u);
}

TEST_F(ReclaimerTest, WithoutPunchingRangesComeBackWithThePack) {
  use(0, /*can_punch=*/false);
  const ExtentId pack = make_pack(kBody);
  reclaim({body(pack, 0), body(pack, 2)}, {.enough_bytes = kBody});
  EXPECT_TRUE(punches_.empty());
  EXPECT_TRUE(dead_.has_unpunched());
  index_.extents.clear();
  kept_ = {pack};  // a lost record may name more in it: it would stay for ever
  reclaim({body(pack, 1)});
  EXPECT_FALSE(is_there(pack));
  EXPECT_FALSE(dead_.has_unpunched());
}

TEST_F(ReclaimerTest, SeveralFilesAtATime) {
  use(3);
  std::vector<FreedPlace> places;
  for (int n = 0; n < 20; ++n) {
    const ExtentId pack = make_pack(n % 2 == 0 ? kBody : 0);
    for (uint64_t number : {0, 2, 4}) places.push_back(body(pack, number));
  }
  reclaim(places);
  EXPECT_EQ(punches_.size(), 30u);
  EXPECT_EQ(counters_.removed_extents, 10u);
  EXPECT_EQ(dead_.bytes(), 0u);
}

}  // namespace reclaimer_test
}  // namespace kvcachefs
