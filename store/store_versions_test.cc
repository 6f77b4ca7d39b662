// Versions of one temporary name: several writers, each with a file of its own, of which the name shows one.
#include <gtest/gtest.h>
#include <unistd.h>

#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_versions_test {

using testing::drain;
using testing::link;
using testing::sync_file;
using testing::TestStore;

const uint32_t kFirst = static_cast<uint32_t>(getpid()), kSecond = 1;  // threads of two processes, which have not ended

// The name refers again to the first version of the first writer. The journal had it, until it had that of the second writer.
class FormerVersion : public ::testing::Test {
 protected:
  enum class Kept { kLater, kByDrain, kBySync, kBySyncOfDirectory };
  explicit FormerVersion(Kept kept = Kept::kLater) {
    Handle* first = store_.create("t.tmp", kFirst);
    store_.pwrite(first, 0, former_);
    Handle* second = begin(kSecond);
    EXPECT_TRUE(store_.close(first));
    work();
    Handle* third = begin(kFirst);
    EXPECT_TRUE(store_.close(second));
    work();
    EXPECT_TRUE(store_.rename("t.tmp", "final", kSecond));
    switch (kept) {
      case Kept::kLater: work(); break;
      case Kept::kByDrain: EXPECT_TRUE(drain(store_)); break;
      case Kept::kBySync: EXPECT_TRUE(fsync("t.tmp")); break;
      case Kept::kBySyncOfDirectory:
        EXPECT_TRUE(testing::await<void>(store_, [&](auto done) { store_->sync_directory(kRootId, std::move(done)); }));
        break;
    }
    EXPECT_TRUE(store_.close(third));
    if (kept != Kept::kLater) return;
    EXPECT_TRUE(store_.rename("t.tmp", "final", kFirst));
    EXPECT_EQ(store_.read_file("t.tmp"), former_);
  }
  // Not settle(): while a version is being written there is always something to try.
  void work() {
    for (int i = 0; i < 50; ++i) store_->pump();
  }
  Handle* begin(uint32_t thread) {
    Handle* handle = store_.open_for_rewrite("t.tmp", thread);
    store_.pwrite(handle, 0, store_.payload(static_cast<int>(thread), 16'000));
    return handle;
  }
  Status fsync(const std::string& name) {
    Handle* handle = store_.open(name, {.read = true}, 33);
    Status synced = sync_file(store_, handle);
    store_.close(handle);
    return synced;
  }
  TestStore store_;
  const std::string former_ = TestStore::payload(1, 16'000);
};

TEST_F(FormerVersion, IsKeptByASync) {
  EXPECT_TRUE(fsync("t.tmp"));
  store_.crash();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

// No commit has looked at the name since it refers to that version, and a newer one is being written.
class DrainedFormerVersion : public FormerVersion {
 protected:
  DrainedFormerVersion() : FormerVersion(Kept::kByDrain) {}
};
class SyncedFormerVersion : public FormerVersion {
 protected:
  SyncedFormerVersion() : FormerVersion(Kept::kBySync) {}
};
class FormerVersionInASyncedDirectory : public FormerVersion {
 protected:
  FormerVersionInASyncedDirectory() : FormerVersion(Kept::kBySyncOfDirectory) {}
};

TEST_F(DrainedFormerVersion, IsKept) {
  store_.crash();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

TEST_F(SyncedFormerVersion, IsKept) {
  store_.crash();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

TEST_F(FormerVersionInASyncedDirectory, IsKept) {
  store_.crash();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

TEST_F(FormerVersion, IsJournaledByItself) {
  work();
  store_.crash();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

TEST_F(FormerVersion, IsKeptByAnUnmount) {
  store_.remount();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

TEST_F(FormerVersion, IsKeptUnderAnotherName) {
  EXPECT_TRUE(link(store_, "t.tmp", "z"));
  EXPECT_TRUE(fsync("z"));
  store_.crash();
  EXPECT_EQ(store_.read_file("z"), former_);
}

// As long as a newer one is being written, a crash leaves the name to the last finished version.
TEST_F(FormerVersion, IsJournaledWhileANewerOneIsWritten) {
  Handle* newer = begin(kSecond);
  work();
  store_.close(newer);
  store_.crash();
  EXPECT_EQ(store_.read_file("t.tmp"), former_);
}

}  // namespace store_versions_test
}  // namespace kvcachefs
