#include "store/journal/node_fence.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>

#include "store/journal/removed_nodes.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace node_fence_test {

constexpr int64_t kSecondNs = 1'000'000'000;

class NodeFenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto below = open_posix_volume(directory_.path(), {});
    ASSERT_TRUE(below) << below.error().message;
    volume_ = make_fault_volume(*below, [this](const VolumeCall&) {
      ++calls_;
      return Fault{.sys_errno = broken_ ? EIO : 0};
    });
    ASSERT_TRUE(volume_->make_directories("nodes/a/7"));
    identity_.node = "a";
    identity_.epoch = 7;
    fence_.emplace(volume_, identity_, 30 * kSecondNs, [this] { return now_ns_; });
    fence_->on_lost([this] { ++told_; });
    calls_ = 0;
  }
  void away(int64_t seconds) { now_ns_ += seconds * kSecondNs; }

  test::TestDirectory directory_;
  std::shared_ptr<Volume> volume_;
  FileIdentity identity_;
  int64_t now_ns_ = 1000 * kSecondNs;
  int calls_ = 0, told_ = 0;
  bool broken_ = false;
  std::optional<NodeFence> fence_;
};

TEST_F(NodeFenceTest, WhoWasHeardOfIsNotLookedFor) {
  for (int i = 0; i < 100; ++i) {
    away(20);
    fence_->heard_of();
    EXPECT_TRUE(fence_->check());
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(NodeFenceTest, WhoWasAwayLooksOnce) {
  away(60);
  fence_->heard_of();  // the first thing that it does is no proof
  EXPECT_TRUE(fence_->check());
  const int once = calls_;
  EXPECT_GT(once, 0);
  EXPECT_TRUE(fence_->check());
  EXPECT_EQ(calls_, once);
  EXPECT_EQ(told_, 0);
}

TEST_F(NodeFenceTest, ALaterEpochIsAnotherDaemons) {
  ASSERT_TRUE(volume_->make_directories("nodes/a/8"));
  EXPECT_TRUE(fence_->check()) << "not looked for yet";
  away(31);
  fence_->heard_of();
  for (int i = 0; i < 2; ++i) {
    const Status status = fence_->check();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kIo);
    EXPECT_NE(status.error().message.find("node 'a'"), std::string::npos);
    fence_->heard_of();
  }
  EXPECT_TRUE(fence_->is_lost());
  EXPECT_EQ(told_, 1);
  fence_->on_lost([this] { told_ += 10; });
  EXPECT_EQ(told_, 11) << "who asks later is told at once";
}

TEST_F(NodeFenceTest, SoIsANodeThatWasRemoved) {
  ASSERT_TRUE(set_node_aside(*volume_, identity_));
  away(31);
  EXPECT_FALSE(fence_->check());
  EXPECT_EQ(told_, 1);
}

TEST_F(NodeFenceTest, ADirectoryThatIsGoneWithoutThatIsNoOtherDaemon) {
  ASSERT_TRUE(volume_->remove_directory("nodes/a/7"));
  away(31);
  EXPECT_TRUE(fence_->check()) << "what is published will fail by itself";
  EXPECT_FALSE(fence_->is_lost());
}

TEST_F(NodeFenceTest, WhatCannotBeFoundOutIsAskedAgain) {
  away(31);
  broken_ = true;
  EXPECT_FALSE(fence_->check());
  EXPECT_FALSE(fence_->is_lost());
  broken_ = false;
  EXPECT_TRUE(fence_->check());
  EXPECT_EQ(told_, 0);
}

// A node that is busy is heard of all the time.
TEST_F(NodeFenceTest, WhoIsHeardOfLooksNowAndThen) {
  for (int i = 0; i < 9; ++i) {
    away(1);
    fence_->heard_of();
    EXPECT_TRUE(fence_->check_now_and_then());
  }
  EXPECT_EQ(calls_, 0);
  ASSERT_TRUE(volume_->make_directories("nodes/a/8"));
  away(1);
  fence_->heard_of();
  EXPECT_TRUE(fence_->check());
  EXPECT_FALSE(fence_->check_now_and_then());
  EXPECT_EQ(told_, 1);
}

}  // namespace node_fence_test
}  // namespace kvcachefs
