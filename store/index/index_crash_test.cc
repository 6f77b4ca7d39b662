// kill -9 in the middle of commits, and disks that are full: position and content always belong together, and nothing
// applied is lost while the process lives.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/index_test_util.h"

namespace kvcachefs::index_test {

namespace index_crash_test {

// The history that a seed stands for: batch n is made from the model after n - 1, its position is {1, 0, n}.
class History {
 public:
  explicit History(uint64_t seed) : maker_(seed) {}
  Batch next() {
    Batch batch = maker_.make(model_);
    model_.apply(batch);
    ++count_;
    return batch;
  }
  void advance_to(uint64_t count) {
    while (count_ < count) next();
  }
  JournalPosition position() const { return {1, 0, count_}; }
  const Model& model() const { return model_; }

 private:
  BatchMaker maker_;
  Model model_;
  uint64_t count_ = 0;
};

Index::Found found_at(const JournalPosition& position) {
  return position == JournalPosition{} ? Index::Found::kFresh : Index::Found::kOpened;
}

// In a child: goes on from where the index is, committing often, until it is killed.
[[noreturn]] void write_until_killed(const std::string& directory, uint64_t seed, int started) {
  Index::Found found{};
  std::string why;
  auto index = Index::open(directory, identity(), &found, &why);
  if (!index || !why.empty()) _exit(3);
  History history(seed);
  history.advance_to((*index)->position().offset);
  if (write(started, "x", 1) != 1) _exit(4);
  for (uint64_t n = 1;; ++n) {
    const Batch batch = history.next();
    if (!(*index)->apply(batch, history.position())) _exit(5);
    if (n % 3 == 0 && !(*index)->commit()) _exit(6);
  }
}

TEST(IndexKill, PositionAndContentBelongTogether) {
  const ScratchDirectory scratch;
  const uint64_t seed = 77;
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  JournalPosition last;
  uint64_t advanced = 0;
  for (int round = 0; round < 25 && !testing::Test::HasFailure(); ++round) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) write_until_killed(scratch.path("index"), seed, ends[1]);
    close(ends[1]);
    char byte = 0;
    ASSERT_EQ(read(ends[0], &byte, 1), 1) << "the child did not start";
    close(ends[0]);
    usleep(static_cast<useconds_t>(random() % 40'000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);

    Index::Found found{};
    std::string why;
    auto index = Index::open(scratch.path("index"), identity(), &found, &why);
    ASSERT_TRUE(index) << index.error().message;
    EXPECT_TRUE(why.empty()) << why;
    EXPECT_EQ(found, found_at((*index)->position()));
    EXPECT_GE((*index)->position(), last);
    advanced += (*index)->position() > last;
    last = (*index)->position();
    History history(seed);
    history.advance_to(last.offset);
    expect_same(**index, history.model());
    expect_same_scans(**index, history.model());
  }
  EXPECT_GT(advanced, 0u);
}

// Fills until a commit fails, which must say `expected`; then all is still there, and after `make_room` it commits.
void fill_and_recover(const std::string& directory, Code expected, const std::function<void()>& make_room) {
  auto index = open_index(directory, Index::Found::kFresh);
  ASSERT_NE(index, nullptr);
  History history(5);
  Status status;
  for (int n = 0; n < 4000 && status; ++n) {
    const Batch batch = history.next();
    ASSERT_TRUE(index->apply(batch, history.position()));
    // Large objects, so that the disk is full soon.
    if (n % 10 == 0) {
      Batch large{batch.stamp, {}};
      ObjectRecord object = make_directory(kRootId);
      object.attributes.xattrs = {{"user.filler", std::string(4000 * static_cast<size_t>(n + 1), 'x')}};
      large.records.emplace_back(PutRecord{object});
      const_cast<Model&>(history.model()).apply(large);
      ASSERT_TRUE(index->apply(large, history.position()));
    }
    status = index->commit();
  }
  ASSERT_FALSE(status) << "the disk did not fill up";
  EXPECT_EQ(status.error().code, expected) << status.error().message;
  EXPECT_FALSE(index->damaged());
  const JournalPosition committed = index->position();
  EXPECT_LT(committed, history.position());
  expect_same(*index, history.model());
  EXPECT_FALSE(index->commit());
  const Batch one_more = history.next();
  ASSERT_TRUE(index->apply(one_more, history.position()));
  expect_same(*index, history.model());
  make_room();
  const Status again = index->commit();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(index->position(), history.position());
  index.reset();
  index = open_index(directory, Index::Found::kOpened);
  ASSERT_NE(index, nullptr);
  EXPECT_EQ(index->position(), history.position());
  expect_same(*index, history.model());
}

// Runs `body` in a child, since it changes limits or mounts of the process. 77: cannot be done here.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    std::cout.flush();
    _exit(result != 0 ? result : testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(IndexDiskFull, AFileSizeLimitKeepsTheOverlay) {
  const ScratchDirectory scratch;
  EXPECT_EQ(in_child([&] {
              signal(SIGXFSZ, SIG_IGN);
              rlimit limit{};
              getrlimit(RLIMIT_FSIZE, &limit);
              const rlim_t before = limit.rlim_cur;
              limit.rlim_cur = 400 * kKiB;
              setrlimit(RLIMIT_FSIZE, &limit);
              // LMDB tells of a write that stopped short as EIO.
              fill_and_recover(scratch.path("index"), Code::kIo, [&] {
                limit.rlim_cur = before;
                setrlimit(RLIMIT_FSIZE, &limit);
              });
              return 0;
            }),
            0);
}

TEST(IndexDiskFull, AFullFileSystemKeepsTheOverlay) {
  const ScratchDirectory scratch;
  const int result = in_child([&] {
    // A mount of our own, which ends with the process.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
    if (mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=1m") != 0) return 77;
    fill_and_recover(scratch.path("index"), Code::kNoSpace,
                     [&] { EXPECT_EQ(mount("tmpfs", scratch.path().c_str(), "tmpfs", MS_REMOUNT, "size=256m"), 0); });
    return 0;
  });
  if (result == 77) GTEST_SKIP() << "needs the right to mount a tmpfs";
  EXPECT_EQ(result, 0);
}

}  // namespace index_crash_test

}  // namespace kvcachefs::index_test
