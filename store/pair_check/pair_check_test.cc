// Two sides in one process, each on a volume of its own over one directory; and over a volume that breaks one of the four properties, as file
// systems do.
#include "store/pair_check/pair_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "store/volume/test_directory.h"
#include "store/volume/volume.h"

namespace kvcachefs {
namespace pair_check_test {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr const char* kDirectory = ".kvcachefs-check-volume";

// The faults of a file system.
struct Breaks {
  bool old_blocks = false;      // a block read once at an offset of a file is remembered, also past the page cache
  bool old_files = false;       // the same, only for files opened anew: the caller opens without direct I/O
  bool exclusive_files = false, exclusive_directories = false, exclusive_links = false;
  bool old_listings = false;
  bool locks_of_machine = false;
  bool locks_that_stay = false;
  bool no_directories = false;  // below that of the meeting
};

// A file as one machine sees it: with the blocks that this machine remembers.
class BrokenFile final : public File {
 public:
  using Remembered = std::map<std::pair<std::string, uint64_t>, std::vector<std::byte>>;
  BrokenFile(FilePtr file, Remembered* remembered) : file_(std::move(file)), remembered_(remembered) {}
  const std::string& path() const override { return file_->path(); }
  Result<size_t> read(std::span<std::byte> into, uint64_t offset) override {
    if (remembered_ == nullptr || path().find("-by-") == std::string::npos) return file_->read(into, offset);
    auto [found, is_new] = remembered_->try_emplace({path(), offset});
    if (is_new) {
      KVC_ASSIGN(const size_t got, file_->read(into, offset));
      found->second.assign(into.begin(), into.begin() + static_cast<ptrdiff_t>(got));
    }
    const size_t length = std::min(into.size(), found->second.size());
    std::copy_n(found->second.begin(), length, into.begin());
    return length;
  }
  Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) override { return file_->write(pieces, offset); }
  Status sync_data() override { return file_->sync_data(); }
  Status truncate(uint64_t size_bytes) override { return file_->truncate(size_bytes); }
  Status allocate(uint64_t offset, uint64_t length) override { return file_->allocate(offset, length); }
  Status punch(uint64_t offset, uint64_t length) override { return file_->punch(offset, length); }
  Result<FileInfo> info() override { return file_->info(); }
  void will_need(uint64_t offset, uint64_t length) override { file_->will_need(offset, length); }
  Result<uint64_t> next_data(uint64_t offset) override { return file_->next_data(offset); }
  Result<uint64_t> next_hole(uint64_t offset) override { return file_->next_hole(offset); }
  bool is_direct() const override { return file_->is_direct(); }
  int descriptor() const override { return file_->descriptor(); }

 private:
  const FilePtr file_;
  Remembered* const remembered_;
};

class BrokenVolume final : public Volume {
 public:
  BrokenVolume(std::shared_ptr<Volume> volume, Breaks breaks) : volume_(std::move(volume)), breaks_(breaks), features_(volume_->features()) {
    if (breaks_.old_files) features_.direct_io = false;
  }
  const VolumeFeatures& features() const override { return features_; }
  const std::string& root() const override { return volume_->root(); }
  Result<FilePtr> open(const std::string& path, OpenOptions options) override {
    auto file = volume_->open(path, options);
    if (!file && file.error().code == Code::kExists && breaks_.exclusive_files && path.find("/file-") != std::string::npos)
      file = volume_->open(path, {.writable = true});
    KVC_TRY(file);
    const bool remembers = breaks_.old_blocks || breaks_.old_files;
    return std::make_shared<BrokenFile>(std::move(*file), remembers ? &remembered_ : nullptr);
  }
  Status make_directory(const std::string& path) override {
    if (breaks_.no_directories && path.find("listing-of-") != std::string::npos) return fail_errno(EACCES, path);
    Status made = volume_->make_directory(path);
    if (!made && made.error().code == Code::kExists && breaks_.exclusive_directories && path.find("/directory-") != std::string::npos) return {};
    return made;
  }
  Status make_directories(const std::string& path) override { return volume_->make_directories(path); }
  Status remove_file(const std::string& path) override { return volume_->remove_file(path); }
  Status remove_directory(const std::string& path) override { return volume_->remove_directory(path); }
  Status rename(const std::string& from, const std::string& to) override { return volume_->rename(from, to); }
  Status publish(const std::string& from, const std::string& to) override {
    return breaks_.exclusive_links ? volume_->rename(from, to) : volume_->publish(from, to);
  }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (!breaks_.old_listings || path.find("listing-of-") == std::string::npos) return volume_->list(path);
    const auto found = listings_.find(path);
    if (found != listings_.end()) return found->second;
    KVC_ASSIGN(listings_[path], volume_->list(path));
    return listings_[path];
  }
  Result<FileInfo> info(const std::string& path) override { return volume_->info(path); }
  Status sync_directory(const std::string& path) override { return volume_->sync_directory(path); }
  Status sync_everything() override { return volume_->sync_everything(); }
  Result<SpaceInfo> space() override { return volume_->space(); }
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override {
    if (breaks_.locks_of_machine) return std::unique_ptr<VolumeLock>(std::make_unique<NoLock>());
    if (!stay_.empty()) return std::unique_ptr<VolumeLock>(std::make_unique<NoLock>());
    auto lock = volume_->lock(path);
    if (lock && breaks_.locks_that_stay) {
      stay_.push_back(std::move(*lock));
      return std::unique_ptr<VolumeLock>(std::make_unique<NoLock>());
    }
    return lock;
  }
  void submit(std::vector<IoRequest> requests) override { volume_->submit(std::move(requests)); }
  void drain() override { volume_->drain(); }

 private:
  class NoLock final : public VolumeLock {
    Status describe(std::string_view) override { return {}; }
  };
  const std::shared_ptr<Volume> volume_;
  const Breaks breaks_;
  VolumeFeatures features_;
  BrokenFile::Remembered remembered_;
  std::map<std::string, std::vector<DirectoryEntry>> listings_;
  std::vector<std::unique_ptr<VolumeLock>> stay_;
};

class PairCheckTest : public ::testing::Test {
 protected:
  using Report = Result<PairCheckReport>;
  std::shared_ptr<Volume> open() {
    auto volume = open_posix_volume(directory_.path(), {.io_uring = false});
    EXPECT_TRUE(volume) << volume.error().message;
    return *volume;
  }
  static PairCheckRequest request(const std::string& host) {
    return {.host = host, .wait_ns = 20 * kSecondNs, .patience_ns = 20 * kSecondNs, .stands_ns = 3 * kSecondNs, .rounds = 4};
  }
  // Runs both at once; the first has the faults, the other one is sound.
  std::pair<Report, Report> run_both(Breaks breaks, Breaks others) {
    Report one = fail(Code::kIo, "did not run"), two = one;
    std::thread first([&] {
      BrokenVolume volume(open(), breaks);
      one = check_volume(volume, request("one"));
    });
    BrokenVolume volume(open(), others);
    two = check_volume(volume, request("two"));
    first.join();
    return {std::move(one), std::move(two)};
  }
  // Which property fails, and only that, in both reports.
  std::optional<size_t> failing(const Breaks& breaks) {
    const auto [one, two] = run_both(breaks, breaks);
    EXPECT_TRUE(one) << one.error().message;
    EXPECT_TRUE(two) << two.error().message;
    if (!one || !two) return std::nullopt;
    std::optional<size_t> which;
    for (size_t at = 0; at < one->properties.size(); ++at) {
      EXPECT_EQ(one->properties[at].failures.empty(), two->properties[at].failures.empty()) << "both tell both";
      if (one->properties[at].failures.empty()) continue;
      EXPECT_FALSE(which.has_value()) << *which << " and " << at;
      EXPECT_NE(one->properties[at].consequence, "");
      which = at;
    }
    EXPECT_EQ(one->holds(), !which.has_value());
    EXPECT_EQ(std::filesystem::exists(directory_.path() + "/" + kDirectory), breaks.old_listings) << "what it does not show it cannot remove";
    return which;
  }

  test::TestDirectory directory_;
};

TEST_F(PairCheckTest, WhatHoldsIsToldByBoth) {
  const auto [one, two] = run_both({}, {});
  ASSERT_TRUE(one) << one.error().message;
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_TRUE(one->holds() && two->holds());
  EXPECT_EQ(one->other_host, "two");
  EXPECT_EQ(two->other_host, "one");
  EXPECT_TRUE(one->same_machine && two->same_machine);
  EXPECT_EQ(one->root, directory_.path());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(PairCheckTest, OldBytesAreFound) {
  EXPECT_EQ(failing({.old_blocks = true}), 0u);
  EXPECT_EQ(failing({.old_files = true}), 0u);
}

TEST_F(PairCheckTest, TwoOfOneNameAreFound) {
  EXPECT_EQ(failing({.exclusive_files = true}), 1u);
  EXPECT_EQ(failing({.exclusive_directories = true}), 1u);
  EXPECT_EQ(failing({.exclusive_links = true}), 1u);
}

TEST_F(PairCheckTest, OldListingsAreFound) {
  EXPECT_EQ(failing({.old_listings = true}), 2u);
  EXPECT_EQ(failing({}), std::nullopt) << "what was left of that is in nobody's way";
}

TEST_F(PairCheckTest, LocksThatHoldNobodyOrForEverAreFound) {
  EXPECT_EQ(failing({.locks_of_machine = true}), 3u);
  const auto [one, two] = run_both({.locks_that_stay = true}, {});
  ASSERT_TRUE(one && two) << (one ? "" : one.error().message) << (two ? "" : two.error().message);
  for (const PairCheckReport* each : {&*one, &*two}) {
    for (const size_t property : {0u, 1u, 2u}) EXPECT_TRUE(each->properties[property].failures.empty());
    EXPECT_TRUE(std::ranges::any_of(each->properties[3].failures, [](const std::string& what) { return what.find("was refused") != std::string::npos; }));
  }
}

// Faults on one side only: the other one hears of them.
TEST_F(PairCheckTest, WhatOneSideSeesTheOtherIsTold) {
  const auto [one, two] = run_both({.old_listings = true}, {});
  ASSERT_TRUE(one && two);
  ASSERT_EQ(two->properties[2].failures.size(), one->properties[2].failures.size());
  ASSERT_FALSE(two->properties[2].failures.empty());
  EXPECT_EQ(two->properties[2].failures[0], "on one: " + one->properties[2].failures[0]);
}

TEST_F(PairCheckTest, WhoIsAloneIsToldSo) {
  auto volume = open();
  PairCheckRequest alone = request("one");
  alone.wait_ns = kSecondNs / 10;
  const auto report = check_volume(*volume, alone);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kBusy);
  EXPECT_NE(report.error().message.find("second machine"), std::string::npos) << report.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

// Killed while it waited, or in the middle.
TEST_F(PairCheckTest, WhatAKilledOneLeftIsRemoved) {
  const auto leave = [this](std::vector<std::string> names) {
    std::filesystem::create_directories(directory_.path() + "/" + kDirectory + "/below");
    for (const std::string& name : names) {
      auto volume = open();
      ASSERT_TRUE(volume->open(std::string(kDirectory) + "/" + name, {.create_exclusive = true}));
    }
  };
  for (const auto& names : {std::vector<std::string>{"side-1"}, {"side-1", "side-2"}, {"side-2", "below/x"}}) {
    leave(names);
    PairCheckRequest soon = request("one");
    soon.stands_ns = kSecondNs / 2;
    std::vector<std::string> told;
    soon.wait_ns = kSecondNs / 10;
    soon.tell = [&told](const std::string& line) { told.push_back(line); };
    const auto report = check_volume(*open(), soon);
    ASSERT_FALSE(report);
    EXPECT_NE(report.error().message.find("nobody came"), std::string::npos) << report.error().message;
    EXPECT_NE(std::ranges::find(told, "what was left of a check that was killed is removed"), told.end()) << names[0];
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << names[0];
  }
}

// Both come at once to leftovers: they find each other.
TEST_F(PairCheckTest, TwoThatComeToWhatWasLeftFindEachOther) {
  for (const auto& names : {std::vector<std::string>{"listing-of-1"}, {"side-1"}, {"side-1", "side-2"}, {"side-2"}}) {
    std::filesystem::create_directories(directory_.path() + "/" + kDirectory);
    for (const std::string& name : names) ASSERT_TRUE(open()->open(std::string(kDirectory) + "/" + name, {.create_exclusive = true}));
    const auto [one, two] = run_both({}, {});
    EXPECT_TRUE(one && two) << names[0] << ": " << (one ? "" : one.error().message) << (two ? "" : two.error().message);
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << names[0];
  }
}

TEST_F(PairCheckTest, AThirdOneIsRefused) {
  std::optional<Report> third;
  std::mutex mutex;
  Report one = fail(Code::kIo, "did not run");
  PairCheckRequest slow = request("two");
  slow.rounds = 40;
  PairCheckRequest first = request("one");
  first.rounds = 40;
  std::thread thread([&] { one = check_volume(*open(), first); });
  std::thread other;
  slow.tell = [&](const std::string& line) {  // while the two run
    if (line.find("completed write") == std::string::npos) return;
    other = std::thread([&] {
      auto report = check_volume(*open(), request("three"));
      const std::lock_guard lock(mutex);
      third.emplace(std::move(report));
    });
  };
  const Report two = check_volume(*open(), slow);
  thread.join();
  if (other.joinable()) other.join();
  EXPECT_TRUE(one && two) << (one ? "" : one.error().message) << (two ? "" : two.error().message);
  ASSERT_TRUE(third.has_value());
  ASSERT_FALSE(*third);
  EXPECT_NE(third->error().message.find("two others"), std::string::npos) << third->error().message;
}

TEST_F(PairCheckTest, OneThatFailsTellsTheOther) {
  const auto [one, two] = run_both({.no_directories = true}, {});
  ASSERT_FALSE(one);
  ASSERT_FALSE(two);
  EXPECT_EQ(one.error().code, Code::kPermission) << one.error().message;
  EXPECT_NE(two.error().message.find("the check on one gave up: "), std::string::npos) << two.error().message;
  EXPECT_NE(two.error().message.find("listing-of-"), std::string::npos) << two.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(PairCheckTest, BothThatFailAtOnceLeaveNothing) {
  const auto [one, two] = run_both({.no_directories = true}, {.no_directories = true});
  EXPECT_FALSE(one || two);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

// What was found before that is not lost.
TEST_F(PairCheckTest, WhatFailedBeforeIsToldWithAnError) {
  const auto [one, two] = run_both({.exclusive_links = true, .no_directories = true}, {.exclusive_links = true});
  ASSERT_FALSE(one || two);
  for (const Report* each : {&one, &two}) EXPECT_NE(each->error().message.find("of two that make the same name"), std::string::npos) << each->error().message;
}

TEST_F(PairCheckTest, ADirectoryThatIsNotThere) {
  const auto report = check_volume(directory_.path() + "/absent", request("one"));
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message.find("absent"), std::string::npos) << report.error().message;
}

}  // namespace pair_check_test
}  // namespace kvcachefs
