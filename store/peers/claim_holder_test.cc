// The claims of nodes that share a capacity, in the cases that matter; random histories are in claim_sim_test.
#include "store/peers/claim_holder.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "store/peers/testing/claim_sim.h"

namespace kvcachefs {
namespace claim_holder_test {

using testing::kSimChunk;
using testing::kSimSecondNs;
using testing::SimDisk;
using testing::SimNode;
constexpr int64_t kMsNs = 1'000'000;
constexpr uint64_t kCapacity = testing::kSimCapacity;

class ClaimHolderTest : public ::testing::Test {
 protected:
  SimNode& start(const std::string& name, uint32_t epoch = 1, const SimNode* before = nullptr) {
    nodes_.push_back(std::make_unique<SimNode>(SimNode::World{disk_, clock_, [](SimNode&) {}}, name, epoch, before));
    nodes_.back()->begin();
    return *nodes_.back();
  }
  static void write(SimNode& node, int chunks) {
    for (; chunks > 0 && node.write(); --chunks) {
    }
  }
  // Runs for that long, in steps of 50 ms; in each step every one of `writers` stores a chunk or more.
  void run(int seconds, std::vector<SimNode*> writers, int chunks = 4) {
    for (int step = 0; step < seconds * 20; ++step) {
      clock_.advance_ns(50 * kMsNs);
      for (SimNode* writer : writers) write(*writer, chunks);
      for (const auto& node : nodes_) node->step(random_() % 16 == 0);
      uint64_t physical = 0;
      for (const auto& node : nodes_) physical += node->physical();
      ASSERT_LE(physical, kCapacity);
    }
  }

  std::shared_ptr<SimDisk> disk_ = std::make_shared<SimDisk>();
  ManualClock clock_{1000 * kSimSecondNs};
  std::minstd_rand random_{7};
  std::vector<std::unique_ptr<SimNode>> nodes_;
};

TEST_F(ClaimHolderTest, ANodeThatIsAloneClaimsAheadOfWhatItUsesAndTellsOnlyThat) {
  SimNode& a = start("a");
  EXPECT_GE(a.claim(), a.used() + kCapacity / 8);
  EXPECT_LE(a.claim(), a.used() + kCapacity / 2);
  uint64_t told = a.told;
  run(20, {});
  EXPECT_EQ(a.told, told) << "nothing changes";
  a.capacity /= 2;
  run(2, {});
  EXPECT_GT(a.told, told) << "others are to know";
  a.capacity *= 2;
  run(2, {});
  told = a.told;
  for (int i = 0; i < 240; ++i) {
    clock_.advance_ns(50 * kMsNs);
    EXPECT_TRUE(a.write()) << "it waits for a raise at " << i;
    a.step(i % 20 == 0);
  }
  EXPECT_LT(a.told - told, 40u) << "two for each raise";
  EXPECT_GT(a.used(), kCapacity * 9 / 10);
}

TEST_F(ClaimHolderTest, ANodeThatIsAloneComesToUseAllOfIt) {
  SimNode& a = start("a");
  a.evicts = false;
  run(30, {&a});
  EXPECT_GT(a.used() + kSimChunk, kCapacity);
}

TEST_F(ClaimHolderTest, ASlowServerStopsNoClaimOfANodeThatIsAlone) {
  disk_->set_network(true);
  nodes_.push_back(std::make_unique<SimNode>(SimNode::World{disk_, clock_, [this](SimNode&) { clock_.advance_ns(3 * kSimSecondNs); }}, "a", 1));
  nodes_.back()->begin();
  EXPECT_GT(nodes_.back()->claim(), kCapacity / 8);
}

TEST_F(ClaimHolderTest, OneThatComesWritesAtOnce) {
  SimNode& a = start("a");
  run(4, {&a}, 1);
  SimNode& b = start("b");
  EXPECT_GE(b.claim(), b.used() + 4 * kSimChunk) << "before the other knows of it";
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(b.write());
  run(2, {&b}, 1);
  EXPECT_GE(b.chunks(), 44u) << "nor does it wait later, while anything is unclaimed";
}

TEST_F(ClaimHolderTest, OneThatComesToAFullVolumeGetsItsPart) {
  SimNode& a = start("a");
  run(30, {&a});
  run(3, {});
  EXPECT_GT(a.used(), kCapacity * 9 / 10);
  SimNode& b = start("b");
  run(10, {&a, &b});
  EXPECT_GT(b.chunks() * kSimChunk, kCapacity / 10) << "of " << a.chunks() * kSimChunk;
}

// The other node begins, from its first directory on, at some call of the first one.
TEST_F(ClaimHolderTest, TwoThatStartAtOnceClaimNoMoreThanThereIs) {
  int alone = 0;
  for (int at_call = 0; at_call < 24; ++at_call) {
    disk_ = std::make_shared<SimDisk>();
    std::unique_ptr<SimNode> other;
    int calls = 0;
    // A third that is gone has left just more than one of them claims ahead.
    SimNode gone({disk_, clock_, [](SimNode&) {}}, "gone", 1);
    gone.begin();
    while (gone.used() < kCapacity * 3 / 4 && (gone.write() || (gone.step(true), clock_.advance_ns(50 * kMsNs), true))) {
    }
    clock_.advance_ns(kSimSecondNs);
    gone.settle();
    gone.kill();
    SimNode one({disk_, clock_,
                 [&](SimNode&) {
                   if (calls++ != at_call) return;
                   other = std::make_unique<SimNode>(SimNode::World{disk_, clock_, [](SimNode&) {}}, "b", 1);
                   other->begin();
                 }},
                "a", 1);
    one.begin();
    alone += other ? 0 : 1;
    EXPECT_LE(gone.physical() + one.claim() + (other ? other->claim() : 0), kCapacity) << "at call " << at_call;
  }
  EXPECT_LT(alone, 20) << "begin() makes more calls than that";
}

TEST_F(ClaimHolderTest, WithoutEvictionNothingGoesAndNothingIsPassed) {
  SimNode &a = start("a"), &b = start("b");
  a.evicts = b.evicts = false;
  run(30, {&a});
  run(60, {&b});
  EXPECT_EQ(a.evicted() + b.evicted(), 0u);
  EXPECT_GT(a.used() + b.used(), kCapacity * 9 / 10);
}

TEST_F(ClaimHolderTest, WhatIsNotUsedIsLeftAtACleanEnd) {
  SimNode& a = start("a");
  run(5, {&a}, 1);
  ASSERT_TRUE(a.holder->end());
  a.kill();
  SimNode& b = start("b");
  b.evicts = false;
  run(30, {&b});
  EXPECT_GT(a.used() + b.used(), kCapacity * 9 / 10) << "but what it used";
}

// With a host name as node name a successor has another node name.
TEST_F(ClaimHolderTest, WhatAKilledNodeHadClaimedIsFreeAtOnce) {
  SimNode& a = start("a");
  run(2, {&a});
  a.remove_all();
  clock_.advance_ns(10 * kMsNs);
  ASSERT_GT(a.claim(), a.used() + kCapacity / 8);
  a.kill();
  SimNode& b = start("b");
  b.evicts = false;
  for (int i = 0; i < 20 * 20 && a.physical() + b.used() < kCapacity * 9 / 10; ++i) {
    clock_.advance_ns(50 * kMsNs);
    b.write();
    b.step(i % 20 == 0);
  }
  EXPECT_GT(a.physical() + b.used(), kCapacity * 9 / 10) << b.claim();
}

// A node that stood still writes its accepted data when it goes on, whatever the others did meanwhile.
TEST_F(ClaimHolderTest, ANodeThatStandsStillKeepsItsClaim) {
  SimNode &a = start("a"), &b = start("b");
  b.evicts = false;
  run(5, {&a}, 1);
  a.paused = true;
  const uint64_t claim = a.claim();
  run(300, {&b});
  EXPECT_GT(b.used() + claim, kCapacity * 8 / 10);
  a.paused = false;
  while (a.write()) {
  }
  EXPECT_GT(a.used() + kSimChunk, claim);
  EXPECT_LE(a.used() + b.used(), kCapacity);
  run(5, {&a, &b});
}

// On a network volume the node's lock may be lost while it is away, and its claim with it.
TEST_F(ClaimHolderTest, ANodeThatWasAwayForLongClaimsAnewOnANetworkVolume) {
  disk_->set_network(true);
  SimNode &a = start("a"), &b = start("b");
  a.evicts = b.evicts = false;
  run(5, {&a}, 1);
  run(2, {});
  a.paused = true;
  const uint64_t claim = a.claim(), used = a.used();
  run(25, {&b});
  EXPECT_LE(b.used() + claim, kCapacity) << "not yet";
  run(40, {&b});
  EXPECT_GT(b.used() + claim, kCapacity) << "it is given away";
  a.paused = false;
  EXPECT_FALSE(a.write()) << "and not used by itself any more";
  run(20, {&a});
  EXPECT_LE(a.used(), used + kCapacity / 64) << "there is nothing left to claim";
}

// The node's thread loads a large peer, or verifies data: another thread tells its claim.
TEST_F(ClaimHolderTest, ANodeThatHasNoTimeToLookAtTheOthersKeepsItsClaim) {
  disk_->set_network(true);
  SimNode &a = start("a"), &b = start("b");
  a.evicts = b.evicts = false;
  run(5, {&a}, 1);
  a.busy = true;
  for (int second = 0; second < 60; ++second) {
    run(1, {&b});
    ASSERT_TRUE(a.holder->step_unseen());
    a.write();
    EXPECT_TRUE(a.write() || b.used() + a.claim() + 2 * kSimChunk > kCapacity * 9 / 10) << second;
  }
  EXPECT_LE(a.claim() + b.claim(), kCapacity);
}

TEST_F(ClaimHolderTest, ACapacityThatIsLoweredIsNotPassedAgain) {
  SimNode &a = start("a"), &b = start("b");
  run(30, {&a, &b});
  a.capacity = b.capacity = kCapacity / 2;
  const auto physical = [&] { return a.physical() + b.physical(); };
  for (int step = 0; step < 30 * 20 && physical() > kCapacity / 2; ++step) {
    clock_.advance_ns(50 * kMsNs);
    write(a, 4);
    write(b, 4);
    a.step(step % 16 == 0);
    b.step(step % 16 == 8);
  }
  ASSERT_LE(physical(), kCapacity / 2);
  for (int step = 0; step < 30 * 20; ++step) {
    clock_.advance_ns(50 * kMsNs);
    write(a, 4);
    write(b, 4);
    a.step(step % 16 == 0);
    b.step(step % 16 == 8);
    ASSERT_LE(physical(), kCapacity / 2) << step;
  }
  EXPECT_GT(a.chunks(), 8u);
  EXPECT_GT(b.chunks(), 8u);
}

// Its daemon was killed before it had written the HEAD of its epoch.
TEST_F(ClaimHolderTest, ANodeThatDiedWhileItStartedIsGone) {
  SimNode& a = start("a");
  SimNode& b = start("b");
  b.evicts = false;
  run(5, {&a}, 1);
  a.kill();
  ASSERT_TRUE(disk_->make_directories(epoch_directory("a", 2)));
  run(3, {&b});
  run(30, {&b});
  EXPECT_GT(a.physical() + b.used(), kCapacity * 9 / 10);
}

// A raise reads newer HEADs than the ones Discovery has found in its look each second.
TEST_F(ClaimHolderTest, OneThatCameBackIsNotTakenForGoneByAnOlderView) {
  disk_->set_network(true);
  SimNode &a = start("a"), &b = start("b");
  a.evicts = b.evicts = false;
  run(5, {&b}, 1);
  b.paused = true;
  run(60, {});
  b.paused = false;
  for (int step = 0; step < 60; ++step) {
    clock_.advance_ns(50 * kMsNs);
    write(b, 4);
    b.step(/*look=*/true);
    write(a, 4);
    a.step(/*look=*/false);
    ASSERT_LE(a.claim() + b.claim(), kCapacity) << step;
  }
}

TEST_F(ClaimHolderTest, NothingIsRaisedWhileAHeadCannotBeReadButNotForEver) {
  SimNode &a = start("a"), &b = start("b");
  a.evicts = b.evicts = false;
  run(10, {&a}, 1);
  b.blind_for = "nodes/a/1/HEAD";
  const uint64_t before = b.claim();
  run(20, {&b});
  EXPECT_LE(b.claim(), before);
  run(40, {&b});
  EXPECT_GT(b.claim(), before);
  run(20, {&a, &b});
}

TEST_F(ClaimHolderTest, AKilledNodeWhoseHeadIsTornIsMeasured) {
  SimNode& a = start("a");
  run(5, {&a}, 1);
  run(1, {});
  a.kill();
  disk_->put("nodes/a/1/HEAD", Bytes(2 * kHeadSlotBytes));
  SimNode& b = start("b");
  b.evicts = false;
  EXPECT_GT(b.claim(), b.used());
  run(30, {&b});
  EXPECT_GT(a.physical() + b.used(), kCapacity * 9 / 10);
}

TEST_F(ClaimHolderTest, ANodeThatNeverToldIsMeasured) {
  disk_->put("nodes/old/1/extents/0/1.pack", Bytes(40 * kMiB));
  SimNode& a = start("a");
  run(60, {&a});
  EXPECT_LE(a.used(), 24 * kMiB);
  EXPECT_GT(a.used(), 16 * kMiB);
}

}  // namespace claim_holder_test
}  // namespace kvcachefs
