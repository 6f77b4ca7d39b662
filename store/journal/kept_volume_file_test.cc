#include "store/journal/kept_volume_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "store/journal/make_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace kept_volume_file_test {

namespace fs = std::filesystem;

class KeptVolume : public ::testing::Test {
 protected:
  KeptVolume() : volume_(*open_posix_volume(directory_.path(), {})), header_(*open_or_make_volume(*volume_, Stamp{7})), kept_(*volume_, header_.uuid) {
    EXPECT_TRUE(volume_->make_directories("nodes/a"));
    EXPECT_TRUE(kept_.look());
  }
  Bytes content() const { return read_file(*volume_, kVolumeFileName, kVolumeFileBytes).value_or(Bytes()); }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(directory_.path()), {})); }

  test::TestDirectory directory_;
  const fs::path path_ = fs::path(directory_.path()) / kVolumeFileName;
  std::shared_ptr<Volume> volume_;
  const VolumeHeader header_;
  KeptVolumeFile kept_;
};

TEST_F(KeptVolume, WhatOthersRemoveOrDamageIsPutBackAsItWas) {
  const Bytes before = content();
  ASSERT_EQ(before.size(), kVolumeFileBytes);
  for (int i = 0; i < 2; ++i)
    for (const char* how : {"removed", "cut", "longer", "a link"}) {
      if (how == std::string("cut")) fs::resize_file(path_, 100);
      else if (how == std::string("longer")) fs::resize_file(path_, 5000);
      else fs::remove(path_);
      if (how == std::string("a link")) fs::create_symlink("elsewhere", path_);
      EXPECT_TRUE(kept_.look()) << how;
      EXPECT_EQ(content(), before) << how;
      EXPECT_TRUE(kept_.look()) << how;
      EXPECT_EQ(entries(), 2u) << how;
    }
}

TEST_F(KeptVolume, TheFileOfAnotherVolumeIsLeftAlone) {
  const Bytes before = content();
  VolumeHeader other = header_;
  other.uuid[0] ^= std::byte{1};
  ASSERT_TRUE(write_volume_file(*volume_, encode_volume_file(other), /*replaces=*/true));
  for (int i = 0; i < 2; ++i) {
    const Status found = kept_.look();
    ASSERT_FALSE(found);
    EXPECT_NE(found.error().message.find("another volume"), std::string::npos) << found.error().message;
    EXPECT_EQ(content(), encode_volume_file(other));
  }
  fs::remove(path_);
  EXPECT_TRUE(kept_.look());
  EXPECT_EQ(content(), before);
}

TEST_F(KeptVolume, ADirectoryInItsPlaceIsToldUntilItIsGone) {
  fs::remove(path_);
  fs::create_directory(path_);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(kept_.look().error().code, Code::kIsDirectory);
  fs::remove(path_);
  EXPECT_TRUE(kept_.look());
  EXPECT_EQ(content().size(), kVolumeFileBytes);
}

// Made anew elsewhere, which gives it another time.
TEST_F(KeptVolume, AnotherFileWithTheSameIdIsGood) {
  VolumeHeader again = header_;
  again.created_stamp = Stamp{8};
  ASSERT_TRUE(write_volume_file(*volume_, encode_volume_file(again), /*replaces=*/true));
  EXPECT_TRUE(kept_.look());
  EXPECT_EQ(content(), encode_volume_file(again));
}

}  // namespace kept_volume_file_test
}  // namespace kvcachefs
