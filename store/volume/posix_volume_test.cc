// Files, directories and locks of a volume that is a directory.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include "store/base/bytes.h"
#include "store/volume/posix_probe.h"
#include "store/volume/test_directory.h"
#include "store/volume/volume.h"
#include "store/volume/volume_path.h"

namespace kvcachefs {
namespace posix_volume_test {

using test::AlignedBuffer;
using test::TestDirectory;
using test::write_file_atomically;

class PosixVolumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(directory_.path().empty());
    auto opened = open_posix_volume(directory_.path(), {.io_uring = false, .threads = 2});
    ASSERT_TRUE(opened) << opened.error().message;
    volume_ = *opened;
  }
  FilePtr create(const std::string& path, bool direct = false) {
    auto file = volume_->open(path, {.create_exclusive = true, .direct = direct});
    EXPECT_TRUE(file) << file.error().message;
    return file ? *file : nullptr;
  }
  static Status write(File& file, std::span<const std::byte> data, uint64_t offset) {
    const std::span<const std::byte> pieces[] = {data};
    return file.write(pieces, offset);
  }

  TestDirectory directory_;
  std::shared_ptr<Volume> volume_;
};

TEST(VolumePath, Grammar) {
  for (const char* good : {"a", "a/b", "nodes/a/1/journal/0.log", "..a", "a..", ".tmp"})
    EXPECT_TRUE(check_path(good)) << good;
  for (const char* bad : {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b"})
    EXPECT_EQ(check_path(bad).error().code, Code::kInvalid) << bad;
  EXPECT_EQ(check_path(std::string_view("a\0b", 3)).error().code, Code::kInvalid);
  EXPECT_TRUE(check_path(std::string(255, 'x')));
  EXPECT_EQ(check_path("a/" + std::string(256, 'x')).error().code, Code::kNameTooLong);
  EXPECT_EQ(parent_path("a/b/c"), "a/b");
  EXPECT_EQ(parent_path("a"), "");
}

TEST(PosixProbe, NetworkFilesystems) {
  for (const char* name : {"nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.sshfs", "fuse", "9p"})
    EXPECT_TRUE(is_network_filesystem(name)) << name;
  for (const char* name : {"ext4", "xfs", "btrfs", "tmpfs", "overlay", "unknown"})
    EXPECT_FALSE(is_network_filesystem(name)) << name;
}

TEST_F(PosixVolumeTest, ProbeLeavesNothingAndTellsTheFilesystem) {
  EXPECT_TRUE(volume_->list("")->empty());
  EXPECT_FALSE(volume_->features().io_uring);
  EXPECT_FALSE(volume_->features().filesystem.empty());
  EXPECT_NE(volume_->features().filesystem, "unknown");
  EXPECT_TRUE(volume_->features().file_ids);
  EXPECT_EQ(volume_->root(), directory_.path());
}

// Bytes of the range that can be read without going to the disk; -1 if the file system does not tell.
ssize_t cached_bytes(int fd, uint64_t offset, uint64_t length) {
  Bytes into(length);
  const iovec piece{into.data(), into.size()};
  const ssize_t got = ::preadv2(fd, &piece, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  if (got >= 0) return got;
  return errno == EAGAIN ? 0 : -1;
}

TEST_F(PosixVolumeTest, WhatWillBeNeededIsReadIntoThePageCache) {
  constexpr uint64_t kBytes = 4 * kMiB;
  const AlignedBuffer data(kBytes);
  const FilePtr file = create("f");
  ASSERT_TRUE(file);
  ASSERT_TRUE(write(*file, data.span(), 0));
  const int fd = ::open((directory_.path() + "/f").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  auto drop = [&] {  // only clean pages can be, and none that the kernel is about to put into a list
    constexpr int kTries = 200;
    for (int i = 0; i < kTries; ++i) {
      if (::fsync(fd) == 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && cached_bytes(fd, 0, kBytes) == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  };
  if (cached_bytes(fd, 0, kBlockBytes) < 0 || !drop()) {
    ::close(fd);
    GTEST_SKIP() << "this file system cannot tell what is cached, or does not let go of it";
  }
  for (const uint64_t offset : {uint64_t{0}, kMiB}) {
    ASSERT_TRUE(drop());
    const uint64_t length = kBytes - offset - kBlockBytes;
    file->will_need(offset, length);
    EXPECT_EQ(cached_bytes(fd, offset, length), static_cast<ssize_t>(length)) << "from " << offset;
  }
  file->will_need(0, 0);  // nothing: no error, and nothing to see
  ::close(fd);
}

TEST_F(PosixVolumeTest, RefusesWhatIsNotADirectoryAndBadOptions) {
  create("plain");
  EXPECT_EQ(open_posix_volume(directory_.path() + "/plain", {}).error().code, Code::kNotDirectory);
  EXPECT_EQ(open_posix_volume(directory_.path() + "/missing", {}).error().code, Code::kNotFound);
  EXPECT_EQ(open_posix_volume(directory_.path(), {.queue_depth = 0}).error().code, Code::kInvalid);
  EXPECT_EQ(open_posix_volume(directory_.path(), {.threads = 0}).error().code, Code::kInvalid);
}

TEST_F(PosixVolumeTest, RefusesPathsThatLeave) {
  EXPECT_EQ(volume_->open("/etc/passwd", {}).error().code, Code::kInvalid);
  EXPECT_EQ(volume_->open("../x", {.create_exclusive = true}).error().code, Code::kInvalid);
  EXPECT_EQ(volume_->make_directory("a/../b").error().code, Code::kInvalid);
  EXPECT_EQ(volume_->rename("a", "/b").error().code, Code::kInvalid);
  EXPECT_EQ(volume_->remove_directory("").error().code, Code::kInvalid);
  EXPECT_EQ(volume_->list("..").error().code, Code::kInvalid);
}

// What somebody who can write to a volume puts there to have it read or written by root: nothing outside is reached, whether the
// kernel has openat2 or each directory is opened by itself.
class PlantedTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::create_directories(root_ + "/a/b"));
    ASSERT_TRUE(std::filesystem::create_directories(outside_ + "/b"));
    for (const std::string& path : {victim_, outside_ + "/b/file"}) put(path, "secret");
    auto opened = open_posix_volume(root_, {.io_uring = false, .threads = 1, .openat2 = GetParam()});
    ASSERT_TRUE(opened) << opened.error().message;
    volume_ = *opened;
  }
  void TearDown() override {
    for (const std::string& path : {victim_, outside_ + "/b/file"}) EXPECT_EQ(get(path), "secret") << path;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(outside_ + "/b"), {}), 1);
  }
  static void put(const std::string& path, const std::string& text) {
    FILE* file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr) << path;
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }
  static std::string get(const std::string& path) {
    std::string text(100, 0);
    FILE* file = std::fopen(path.c_str(), "r");
    text.resize(file != nullptr ? std::fread(text.data(), 1, text.size(), file) : 0);
    if (file != nullptr) std::fclose(file);
    return text;
  }
  void expect_refused(const std::string& path) {
    for (const OpenOptions& options : {OpenOptions{}, {.writable = true}, {.direct = true}, {.writable = true, .direct = true}}) {
      const auto file = volume_->open(path, options);
      ASSERT_FALSE(file) << path;
      EXPECT_EQ(file.error().code, Code::kIo) << file.error().message;
      EXPECT_NE(file.error().message.find(path), std::string::npos) << file.error().message;
    }
    EXPECT_FALSE(volume_->lock(path)) << path;
    EXPECT_FALSE(read_file(*volume_, path, 1000)) << path;
  }

  test::TestDirectory directory_;
  const std::string root_ = directory_.path() + "/volume", outside_ = directory_.path() + "/outside",
                    victim_ = directory_.path() + "/outside/victim";
  std::shared_ptr<Volume> volume_;
};

INSTANTIATE_TEST_SUITE_P(OpenAt2, PlantedTest, ::testing::Bool());

TEST_P(PlantedTest, LinksAreNoFiles) {
  std::filesystem::create_symlink(victim_, root_ + "/a/absolute");
  std::filesystem::create_symlink("../../outside/victim", root_ + "/a/relative");
  std::filesystem::create_symlink("b", root_ + "/a/inside");
  std::filesystem::create_symlink(outside_ + "/new", root_ + "/a/dangling");
  std::filesystem::create_hard_link(victim_, root_ + "/a/hard");
  for (const char* path : {"a/absolute", "a/relative", "a/dangling", "a/hard", "a/inside"}) expect_refused(path);
  for (const char* path : {"a/absolute", "a/relative", "a/dangling"}) EXPECT_TRUE(is_not_there(volume_->info(path).error())) << path;
  EXPECT_EQ(volume_->open("a/dangling", {.create_exclusive = true}).error().code, Code::kExists);
  EXPECT_FALSE(std::filesystem::exists(outside_ + "/new"));
  // Calls that replace or remove a link act on the link.
  ASSERT_TRUE(write_file_atomically(*volume_, "a/absolute", as_bytes("mine")));
  EXPECT_EQ(as_text(*read_file(*volume_, "a/absolute", 100)), "mine");
  EXPECT_TRUE(volume_->remove_file("a/hard"));
}

TEST_P(PlantedTest, LinksAreNoDirectories) {
  std::filesystem::create_symlink(outside_, root_ + "/link");
  std::filesystem::create_symlink(outside_ + "/b", root_ + "/a/link");
  for (const char* path : {"link/b/file", "link/victim", "a/link/file"}) {
    EXPECT_FALSE(volume_->open(path, {})) << path;
    EXPECT_FALSE(volume_->open(path, {.writable = true})) << path;
    EXPECT_FALSE(volume_->lock(path)) << path;
    EXPECT_TRUE(is_not_there(volume_->info(path).error())) << path;
    EXPECT_FALSE(volume_->remove_file(path)) << path;
    EXPECT_FALSE(volume_->rename(path, "taken")) << path;
    EXPECT_FALSE(volume_->rename("a/b", path)) << path;
  }
  EXPECT_FALSE(volume_->open("a/link/new", {.create_exclusive = true}));
  EXPECT_FALSE(volume_->lock("a/link/new"));
  EXPECT_FALSE(volume_->make_directory("a/link/new"));
  EXPECT_FALSE(volume_->make_directories("a/link/new/er"));
  EXPECT_FALSE(volume_->make_directories("a/link"));
  EXPECT_FALSE(volume_->list("link"));
  EXPECT_FALSE(volume_->list("link/b"));
  EXPECT_FALSE(volume_->sync_directory("link"));
  EXPECT_FALSE(volume_->remove_directory("link/b"));
  const auto entries = volume_->list("");
  ASSERT_TRUE(entries);
  EXPECT_TRUE(std::ranges::none_of(*entries, [](const DirectoryEntry& entry) { return entry.name == "link" && entry.is_directory; }));
}

TEST_P(PlantedTest, NothingBlocksOnWhatIsNoFile) {
  ASSERT_EQ(::mkfifo((root_ + "/a/fifo").c_str(), 0600), 0);
  expect_refused("a/fifo");
  for (const char* path : {"a/fifo", "a/fifo/file", "a/none", "none/file"}) EXPECT_TRUE(is_not_there(volume_->info(path).error())) << path;
  if (::mknod((root_ + "/a/null").c_str(), S_IFCHR | 0600, ::makedev(1, 3)) == 0) expect_refused("a/null");
}

// The path of the volume is the administrator's.
TEST_P(PlantedTest, TheRootMayBeALink) {
  const std::string link = directory_.path() + "/link";
  std::filesystem::create_symlink(root_, link);
  auto opened = open_posix_volume(link, {.io_uring = false, .threads = 1, .openat2 = GetParam()});
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_TRUE((*opened)->open("a/f", {.create_exclusive = true}));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/a/f"));
}

TEST_F(PosixVolumeTest, ReadsWhatWasWrittenInPieces) {
  const FilePtr file = create("f");
  const AlignedBuffer data(300'000, 1);
  const std::span<const std::byte> pieces[] = {data.span(0, 1), data.span(1, 0), data.span(1, 99'999),
                                               data.span(100'000, 200'000)};
  ASSERT_TRUE(file->write(pieces, 12'345));
  const AlignedBuffer back(400'000);
  const auto got = file->read(back.span(), 12'345);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got, 300'000u);  // the end of the file
  EXPECT_TRUE(std::ranges::equal(back.span(0, 300'000), data.span()));
  EXPECT_EQ(file->read(back.span(), 312'345).value(), 0u);
  EXPECT_EQ(file->read(back.span(), 1 << 30).value(), 0u);
  EXPECT_EQ(file->info()->size_bytes, 312'345u);
  EXPECT_TRUE(file->sync_data());
}

TEST_F(PosixVolumeTest, MorePiecesThanOneCallTakes) {
  const FilePtr file = create("f");
  const AlignedBuffer data(5000 * 3, 2);
  std::vector<std::span<const std::byte>> pieces;
  for (size_t i = 0; i < 5000; ++i) pieces.push_back(data.span(i * 3, 3));
  ASSERT_TRUE(file->write(pieces, 7));
  const AlignedBuffer back(5000 * 3);
  ASSERT_EQ(file->read(back.span(), 7).value(), 15'000u);
  EXPECT_TRUE(std::ranges::equal(back.span(), data.span()));
}

TEST_F(PosixVolumeTest, DirectReadsStopAtAnUnalignedEnd) {
  const FilePtr plain = create("f");
  const AlignedBuffer data(3 * kBlockBytes + 1000, 3);
  ASSERT_TRUE(write(*plain, data.span(), 0));
  ASSERT_TRUE(plain->sync_data());
  const auto direct = volume_->open("f", {.writable = true, .direct = true});
  ASSERT_TRUE(direct) << direct.error().message;
  ASSERT_EQ((*direct)->is_direct(), volume_->features().direct_io);
  const AlignedBuffer back(8 * kBlockBytes);
  ASSERT_EQ((*direct)->read(back.span(), 0).value(), data.span().size());
  EXPECT_TRUE(std::ranges::equal(back.span(0, data.span().size()), data.span()));
  EXPECT_EQ((*direct)->read(back.span(), 3 * kBlockBytes).value(), 1000u);
  EXPECT_EQ((*direct)->read(back.span(), 4 * kBlockBytes).value(), 0u);
}

TEST_F(PosixVolumeTest, DirectFilesRefuseWhatIsNotAligned) {
  if (!volume_->features().direct_io) GTEST_SKIP() << "no direct I/O on " << volume_->features().filesystem;
  const FilePtr file = create("f", true);
  ASSERT_TRUE(file->is_direct());
  const AlignedBuffer data(2 * kBlockBytes, 4);
  EXPECT_TRUE(write(*file, data.span(), kBlockBytes));
  EXPECT_EQ(write(*file, data.span(), 512).error().code, Code::kInvalid);
  EXPECT_EQ(write(*file, data.span(0, 1000), 0).error().code, Code::kInvalid);
  EXPECT_EQ(file->read(data.span(8, kBlockBytes), 0).error().code, Code::kInvalid);
}

TEST_F(PosixVolumeTest, ErrorsNameThePlace) {
  const FilePtr made = create("ro");
  const auto file = volume_->open("ro", {});
  const AlignedBuffer data(10);
  const auto failed = write(**file, data.span(), 77);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().sys_errno, EBADF);
  EXPECT_NE(failed.error().message.find(directory_.path() + "/ro: write of 10 bytes at 77"), std::string::npos)
      << failed.error().message;
  EXPECT_EQ(write(*made, data.span(), ~uint64_t{0} - 5).error().code, Code::kTooBig);
}

TEST_F(PosixVolumeTest, SizesAllocationAndHoles) {
  const FilePtr file = create("f");
  constexpr uint64_t kSize = 256 * kKiB;
  const AlignedBuffer data(kSize, 5);
  ASSERT_TRUE(write(*file, data.span(), 0));
  ASSERT_TRUE(file->sync_data());
  const uint64_t full = file->info()->allocated_bytes;
  if (volume_->features().punch_hole) {
    ASSERT_TRUE(file->punch(64 * kKiB, 128 * kKiB));
    ASSERT_TRUE(file->sync_data());
    EXPECT_EQ(file->info()->allocated_bytes, full - 128 * kKiB);
    EXPECT_EQ(file->next_hole(0).value(), 64 * kKiB);
    EXPECT_EQ(file->next_data(64 * kKiB).value(), 192 * kKiB);
    const AlignedBuffer back(kSize);
    ASSERT_EQ(file->read(back.span(), 0).value(), kSize);
    EXPECT_TRUE(std::ranges::all_of(back.span(64 * kKiB, 128 * kKiB), [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_TRUE(std::ranges::equal(back.span(192 * kKiB, 64 * kKiB), data.span(192 * kKiB, 64 * kKiB)));
  }
  EXPECT_EQ(file->info()->size_bytes, kSize);
  EXPECT_EQ(file->next_data(kSize).error().code, Code::kNoData);
  if (const auto allocated = file->allocate(0, 2 * kSize); allocated) {
    EXPECT_EQ(file->info()->size_bytes, 2 * kSize);
    EXPECT_GE(file->info()->allocated_bytes, 2 * kSize);
  } else {
    EXPECT_EQ(allocated.error().code, Code::kUnsupported);
  }
  ASSERT_TRUE(file->truncate(5));
  EXPECT_EQ(file->info()->size_bytes, 5u);
}

TEST_F(PosixVolumeTest, Directories) {
  ASSERT_TRUE(volume_->make_directories("a/b/c"));
  ASSERT_TRUE(volume_->make_directories("a/b/c"));
  EXPECT_EQ(volume_->make_directory("a").error().code, Code::kExists);
  EXPECT_EQ(volume_->make_directory("x/y").error().code, Code::kNotFound);
  create("a/b/f");
  EXPECT_EQ(volume_->make_directories("a/b/f").error().code, Code::kNotDirectory);
  EXPECT_EQ(volume_->make_directories("a/b/f/g").error().code, Code::kNotDirectory);
  const auto entries = volume_->list("a/b");
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "c");
  EXPECT_TRUE((*entries)[0].is_directory);
  EXPECT_EQ((*entries)[1].name, "f");
  EXPECT_FALSE((*entries)[1].is_directory);
  EXPECT_TRUE(volume_->info("a/b")->is_directory);
  EXPECT_TRUE(volume_->info("")->is_directory);
  EXPECT_EQ(volume_->open("a/b", {}).error().code, Code::kIsDirectory);
  const auto lock = volume_->lock("a/b");
  EXPECT_NE(lock.error().message.find("remove it"), std::string::npos) << lock.error().message;
  EXPECT_EQ(volume_->remove_directory("a/b").error().code, Code::kNotEmpty);
  EXPECT_EQ(volume_->remove_directory("a/b/f").error().code, Code::kNotDirectory);
  EXPECT_EQ(volume_->remove_file("a/b/c").error().code, Code::kIsDirectory);
  EXPECT_TRUE(volume_->sync_directory("a/b"));
  EXPECT_TRUE(volume_->sync_directory(""));
  EXPECT_EQ(volume_->sync_directory("nothing").error().code, Code::kNotFound);
  ASSERT_TRUE(volume_->remove_file("a/b/f"));
  ASSERT_TRUE(volume_->remove_directory("a/b/c"));
  EXPECT_TRUE(volume_->list("a/b")->empty());
}

TEST_F(PosixVolumeTest, CreateExclusiveRenameRemoveWhileOpen) {
  const FilePtr old = create("f");
  EXPECT_EQ(volume_->open("f", {.create_exclusive = true}).error().code, Code::kExists);
  EXPECT_EQ(volume_->open("g", {.writable = true}).error().code, Code::kNotFound);
  ASSERT_TRUE(write(*old, as_bytes("old"), 0));
  ASSERT_TRUE(write(*create("g"), as_bytes("newer"), 0));
  ASSERT_TRUE(volume_->rename("g", "f"));
  EXPECT_EQ(volume_->info("f")->size_bytes, 5u);
  EXPECT_EQ(volume_->info("g").error().code, Code::kNotFound);
  EXPECT_EQ(old->info()->size_bytes, 3u);  // the replaced file lives on in its handle
  ASSERT_TRUE(volume_->remove_file("f"));
  EXPECT_EQ(volume_->remove_file("f").error().code, Code::kNotFound);
  EXPECT_TRUE(write(*old, as_bytes("still"), 0));
}

TEST_F(PosixVolumeTest, SmallFileHelpers) {
  ASSERT_TRUE(volume_->make_directory("d"));
  ASSERT_TRUE(write_file_atomically(*volume_, "d/f", as_bytes("one")));
  create("d/f.tmp");  // left by a crash
  ASSERT_TRUE(write_file_atomically(*volume_, "d/f", as_bytes("number two")));
  EXPECT_EQ(volume_->list("d")->size(), 1u);
  EXPECT_EQ(as_text(read_file(*volume_, "d/f", 10).value()), "number two");
  EXPECT_EQ(read_file(*volume_, "d/f", 9).error().code, Code::kTooBig);
  EXPECT_EQ(read_file(*volume_, "d/g", 9).error().code, Code::kNotFound);
  EXPECT_EQ(read_file(*volume_, "d/f", ~uint64_t{0})->size(), 10u);
  ASSERT_TRUE(write_file_atomically(*volume_, "empty", {}));
  EXPECT_TRUE(read_file(*volume_, "empty", 0)->empty());
}

TEST_F(PosixVolumeTest, OfSeveralThatPublishOneSucceeds) {
  constexpr int kAtOnce = 8, kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    const std::string path = "made" + std::to_string(round);
    std::vector<Status> published(kAtOnce);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < kAtOnce; ++i)
        threads.emplace_back([&, i] {
          published[static_cast<size_t>(i)] = publish_file(*volume_, path + "." + std::to_string(i), path, as_bytes(std::to_string(i)));
        });
    }
    int winner = -1;
    for (int i = 0; i < kAtOnce; ++i) {
      const Status& status = published[static_cast<size_t>(i)];
      if (!status) {
        EXPECT_EQ(status.error().code, Code::kExists) << status.error().message;
        continue;
      }
      EXPECT_EQ(winner, -1);
      winner = i;
    }
    EXPECT_EQ(as_text(read_file(*volume_, path, 10).value()), std::to_string(winner));
  }
  EXPECT_EQ(volume_->list("")->size(), static_cast<size_t>(kRounds)) << "drafts are left";
}

TEST_F(PosixVolumeTest, APublishThatWasAnsweredOnceMoreSucceeded) {
  create("draft");
  std::filesystem::create_hard_link(directory_.path() + "/draft", directory_.path() + "/made");  // as by the first asking, of which the answer was lost
  EXPECT_TRUE(volume_->publish("draft", "made"));
  EXPECT_EQ(volume_->list("")->size(), 1u);
  EXPECT_EQ(volume_->publish("gone", "other").error().code, Code::kNotFound);
}

TEST_F(PosixVolumeTest, ProbesOfTheDeadGoThoseOfTheLivingStay) {
  create(".kvcachefs-probe-a-old");
  create(".kvcachefs-probe-b-new");
  using std::filesystem::file_time_type;
  std::filesystem::last_write_time(directory_.path() + "/.kvcachefs-probe-a-old", file_time_type::clock::now() - std::chrono::hours(2));
  const auto again = open_posix_volume(directory_.path(), {});
  ASSERT_TRUE(again);
  const auto entries = (*again)->list("");
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ(entries->front().name, ".kvcachefs-probe-b-new");
}

TEST_F(PosixVolumeTest, SpaceIsPlausible) {
  const auto space = volume_->space();
  ASSERT_TRUE(space);
  EXPECT_GT(space->total_bytes, 0u);
  EXPECT_LE(space->available_bytes, space->total_bytes);
}

// Runs `body` in a child process and returns its exit status.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(PosixVolumeTest, LockKeepsOthersOut) {
  auto lock = volume_->lock("LOCK");
  ASSERT_TRUE(lock) << lock.error().message;
  ASSERT_TRUE((*lock)->describe("a rather long description of the holder"));
  ASSERT_TRUE((*lock)->describe("node a, pid 7\n"));
  const auto second = volume_->lock("LOCK");  // another descriptor of this very process
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(second.error().message.find("locked by node a, pid 7"), std::string::npos) << second.error().message;
  const std::string path = directory_.path() + "/LOCK";
  const auto try_in_child = [&] {
    return in_child([&] {
      struct flock whole {};
      whole.l_type = F_WRLCK;
      const int fd = ::open(path.c_str(), O_RDWR);  // not the inherited one: that shares the parent's lock
      return fd >= 0 && ::fcntl(fd, F_OFD_SETLK, &whole) == 0 ? 0 : 1;
    });
  };
  EXPECT_EQ(try_in_child(), 1);
  lock->reset();
  EXPECT_EQ(try_in_child(), 0);
  EXPECT_TRUE(volume_->lock("LOCK"));  // the child's lock went with it
}

TEST_F(PosixVolumeTest, LockOfAnotherProcessIsSeenAndGoesWithIt) {
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(::pipe(to_child), 0);
  ASSERT_EQ(::pipe(to_parent), 0);
  const std::string path = directory_.path() + "/LOCK";
  const pid_t child = ::fork();
  if (child == 0) {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
    char byte = fd >= 0 && ::fcntl(fd, F_OFD_SETLK, &whole) == 0 ? 'y' : 'n';
    if (::write(to_parent[1], &byte, 1) != 1 || ::read(to_child[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  EXPECT_EQ(volume_->lock("LOCK").error().code, Code::kBusy);
  ASSERT_EQ(::write(to_child[1], &byte, 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(volume_->lock("LOCK"));
  for (int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(fd);
}

}  // namespace posix_volume_test
}  // namespace kvcachefs
