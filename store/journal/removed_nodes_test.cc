#include "store/journal/removed_nodes.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/base/bytes.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace removed_nodes_test {

class RemovedNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    auto volume = open_posix_volume(directory_.path(), {});
    ASSERT_TRUE(volume) << volume.error().message;
    volume_ = std::move(*volume);
    ASSERT_TRUE(volume_->make_directories("nodes"));
  }
  FileIdentity identity(uint32_t epoch) {
    FileIdentity identity;
    identity.node = "a";
    identity.epoch = epoch;
    return identity;
  }
  void make_node(uint32_t epoch) {
    const Bytes content(5000);
    const std::string at = "nodes/a/" + std::to_string(epoch);
    for (const std::string& below : {at + "/journal", at + "/extents/0"}) ASSERT_TRUE(volume_->make_directories(below));
    for (const std::string& path : {std::string("nodes/a/LOCK"), at + "/journal/0.log", at + "/extents/0/1.pack"})
      ASSERT_TRUE(test::write_file_atomically(*volume_, path, content));
  }
  bool has(const std::string& directory, const std::string& name) {
    const auto entries = volume_->list(directory);
    for (const DirectoryEntry& entry : entries.value_or(std::vector<DirectoryEntry>()))
      if (entry.name == name) return true;
    return false;
  }
  test::TestDirectory directory_;
  std::shared_ptr<Volume> volume_;
};

TEST_F(RemovedNodes, OfNoneThereIsNothing) {
  EXPECT_EQ(last_removed_epoch(*volume_, "a").value(), 0u);
  EXPECT_EQ(clear_set_aside(*volume_, "a").value().files, 0u);
  ASSERT_TRUE(volume_->make_directories("removed/b/9"));
  EXPECT_EQ(last_removed_epoch(*volume_, "a").value(), 0u);
}

TEST_F(RemovedNodes, WhatIsLeftTellsTheLastEpoch) {
  make_node(7);
  ASSERT_TRUE(set_node_aside(*volume_, identity(7)));
  EXPECT_FALSE(has("nodes", "a"));
  EXPECT_EQ(last_removed_epoch(*volume_, "a").value(), 7u);
  EXPECT_EQ(clear_set_aside(*volume_, "a", /*remove=*/false).value().files, 3u);
  EXPECT_TRUE(has("removed/a/7", "LOCK"));
  const auto cleared = clear_set_aside(*volume_, "a");
  ASSERT_TRUE(cleared) << cleared.error().message;
  EXPECT_EQ(cleared->files, 3u);
  EXPECT_EQ(cleared->left, 0u);
  EXPECT_TRUE(volume_->list("removed/a/7").value().empty());
  EXPECT_EQ(last_removed_epoch(*volume_, "a").value(), 7u);
  EXPECT_EQ(clear_set_aside(*volume_, "a").value().files, 0u);
}

TEST_F(RemovedNodes, OneOfTheSameNameGoesAsWell) {
  make_node(7);
  ASSERT_TRUE(set_node_aside(*volume_, identity(7)));  // and killed before it was cleared
  make_node(8);
  ASSERT_TRUE(set_node_aside(*volume_, identity(8)));
  EXPECT_EQ(clear_set_aside(*volume_, "a").value().files, 6u);
  EXPECT_FALSE(has("removed/a", "7"));
  EXPECT_TRUE(has("removed/a", "8"));
  EXPECT_EQ(last_removed_epoch(*volume_, "a").value(), 8u);
}

}  // namespace removed_nodes_test
}  // namespace kvcachefs
