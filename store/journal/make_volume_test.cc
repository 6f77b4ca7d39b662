#include "store/journal/make_volume.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "store/base/units.h"
#include "store/journal/extent_header.h"
#include "store/journal/journal.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace make_volume_test {

class MakeVolume : public ::testing::Test {
 protected:
  MakeVolume() : volume_(*open_posix_volume(directory_.path(), {})) {}
  size_t entries() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_.path()), {})); }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  test::TestDirectory directory_;
  std::shared_ptr<Volume> volume_;
};

TEST_F(MakeVolume, IsMadeOnceAndFoundEverAfter) {
  const auto made = open_or_make_volume(*volume_, Stamp{7});
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->created_stamp, Stamp{7});
  EXPECT_EQ(open_or_make_volume(*volume_, Stamp{8}).value(), *made);
  EXPECT_EQ(entries(), 1u);
}

// Without any lock, as on hosts that do not see each other's.
TEST_F(MakeVolume, OfSeveralAtOnceAllHaveOne) {
  constexpr int kAtOnce = 6, kRounds = 40;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Result<VolumeHeader>> found(kAtOnce);
    {
      std::vector<std::jthread> mounts;
      for (auto& each : found) mounts.emplace_back([&] { each = open_or_make_volume(*volume_, Stamp{1}); });
    }
    std::set<std::array<std::byte, 16>> uuids;
    for (const auto& each : found) {
      ASSERT_TRUE(each) << each.error().message;
      uuids.insert(each->uuid);
    }
    EXPECT_EQ(uuids.size(), 1u);
    EXPECT_EQ(entries(), 1u);
    ASSERT_TRUE(volume_->remove_file(kVolumeFileName));
  }
}

TEST_F(MakeVolume, AStartThatWasCutShortIsFinished) {
  const auto made = open_or_make_volume(*volume_, Stamp{7});
  ASSERT_TRUE(made);
  // With both names, as between the two steps of publish().
  std::filesystem::create_hard_link(path("VOLUME"), path("VOLUME.0123456789abcdef.tmp"));
  EXPECT_EQ(open_or_make_volume(*volume_, Stamp{8}).value(), *made);
  EXPECT_EQ(entries(), 1u);
  // Before them.
  std::filesystem::rename(path("VOLUME"), path("VOLUME.0123456789abcdef.tmp"));
  std::filesystem::copy_file(path("VOLUME.0123456789abcdef.tmp"), path("VOLUME.tmp"));  // of an older program
  const auto again = open_or_make_volume(*volume_, Stamp{9});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->created_stamp, Stamp{9});
  EXPECT_EQ(open_or_make_volume(*volume_, Stamp{10}).value(), *again);
  EXPECT_EQ(entries(), 1u);
}

// A mounted daemon, or fsck, puts it back in two steps as well.
TEST_F(MakeVolume, OfAVolumeInUseADraftIsRemovedAndAnotherNameIsLeftAlone) {
  const auto made = open_or_make_volume(*volume_, Stamp{7});
  ASSERT_TRUE(made);
  ASSERT_TRUE(volume_->make_directories("nodes/a"));
  for (const bool by_mount : {true, false}) {
    std::filesystem::create_hard_link(path("VOLUME"), path("VOLUME.0123456789abcdef.tmp"));
    EXPECT_EQ(by_mount ? open_or_make_volume(*volume_, Stamp{8}).value() : read_volume_file(*volume_).value(), *made);
    EXPECT_EQ(entries(), 2u);
  }
  std::filesystem::create_hard_link(path("VOLUME"), path("VOLUME.mine"));
  EXPECT_EQ(open_or_make_volume(*volume_, Stamp{8}).error().code, Code::kIo);
  EXPECT_EQ(read_volume_file(*volume_).error().code, Code::kIo);
  EXPECT_EQ(entries(), 3u);
}

TEST_F(MakeVolume, WithoutItTheErrorSaysHowItIsMadeAnew) {
  ASSERT_TRUE(open_or_make_volume(*volume_, Stamp{7}));
  ASSERT_TRUE(volume_->make_directories("nodes/a"));
  std::filesystem::resize_file(path("VOLUME"), 100);
  for (const Code code : {Code::kCorrupt, Code::kNotFound}) {
    const auto refused = open_or_make_volume(*volume_, Stamp{8});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, code);
    EXPECT_NE(refused.error().message.find("`kvcachefs fsck --repair " + directory_.path() + "`"), std::string::npos) << refused.error().message;
    EXPECT_EQ(read_volume_file(*volume_).error().message, refused.error().message);
    std::filesystem::remove(path("VOLUME"));
  }
}

class LostVolumeFile : public MakeVolume {
 protected:
  static FileIdentity identity(const std::string& node, char volume = 1) {
    FileIdentity made{.volume_uuid = {}, .node = node, .epoch = 1};
    made.volume_uuid.fill(std::byte(volume));
    return made;
  }
  void journal(const FileIdentity& identity, const std::string& node) {
    const auto made = JournalWriter::create(volume_, identity, "boot", kMiB, JournalForm::kPacked);
    ASSERT_TRUE(made) << made.error().message;
    if (node != identity.node) std::filesystem::rename(path("nodes/" + identity.node), path("nodes/" + node));
  }
};

TEST_F(LostVolumeFile, HasTheIdThatAllJournalsName) {
  EXPECT_FALSE(header_of_other_files(*volume_, Stamp{7}));
  journal(identity("a"), "a");
  journal(identity("b"), "b");
  journal(identity("c", 2), "d");  // copied from elsewhere: it is no journal of node d
  const auto header = header_of_other_files(*volume_, Stamp{7});
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->uuid, identity("a").volume_uuid);
  EXPECT_EQ(header->created_stamp, Stamp{7});
}

TEST_F(LostVolumeFile, IsNotMadeFromFilesOfSeveralVolumes) {
  journal(identity("a"), "a");
  journal(identity("b", 2), "b");
  const auto header = header_of_other_files(*volume_, Stamp{7});
  ASSERT_FALSE(header);
  for (const char* named : {"nodes/a/1/journal/0.log", "nodes/b/1/journal/0.log"})
    EXPECT_NE(header.error().message.find(named), std::string::npos) << header.error().message;
}

TEST_F(LostVolumeFile, HasTheIdOfPacksWhereNoJournalCanBeRead) {
  journal(identity("a", 2), "a");
  std::filesystem::resize_file(path("nodes/a/1/journal/0.log"), 10);
  ASSERT_TRUE(volume_->make_directories("nodes/a/1/extents/0"));
  ASSERT_TRUE(publish_file(*volume_, "draft", "nodes/a/1/extents/0/3.pack", encode_pack_header({identity("a"), 3})));
  const auto header = header_of_other_files(*volume_, Stamp{7});
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->uuid, identity("a").volume_uuid);
}

TEST_F(MakeVolume, ADirectoryOfOthersIsRefused) {
  for (const char* name : {"photo.jpg", "nodes", "VOLUME2"}) {
    std::filesystem::create_directory(path(name));
    const auto refused = open_or_make_volume(*volume_, Stamp{7});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kExists);
    EXPECT_NE(refused.error().message.find(name), std::string::npos) << refused.error().message;
    EXPECT_EQ(entries(), 1u);
    std::filesystem::remove(path(name));
  }
  for (const char* name : {"lost+found", ".kvcachefs-first-mount"}) std::filesystem::create_directory(path(name));
  EXPECT_TRUE(open_or_make_volume(*volume_, Stamp{7}));
}

TEST(MakeVolumeCrash, WholeOrNotThereAfterEveryCall) {
  auto clean = make_sim_volume();
  ASSERT_TRUE(open_or_make_volume(*clean, Stamp{7}));
  for (uint64_t stop = 1; stop <= clean->mutating_calls(); ++stop) {
    for (const bool power : {false, true}) {
      auto volume = make_sim_volume();
      volume->stop_at(stop, 100);
      const auto made = open_or_make_volume(*volume, Stamp{7});
      const auto after = power ? volume->cut_power({stop, 0.5, 512}) : volume->crash_process();
      const auto found = open_or_make_volume(*after, Stamp{8});
      ASSERT_TRUE(found) << found.error().message;
      EXPECT_TRUE(!made || *found == *made);
      EXPECT_EQ(open_or_make_volume(*after, Stamp{9}).value(), *found);
    }
  }
}

}  // namespace make_volume_test
}  // namespace kvcachefs
