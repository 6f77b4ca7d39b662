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
  explicit FormerVersion(bool is_drained = false) {
    Handle* first = store_.create("t.tmp", kFirst);
    store_.pwrite(first, 0, former_);
    Handle* second = begin(kSecond);
    EXPECT_TRUE(store_.close(first));
    work();
    Handle* third = begin(kFirst);
    EXPECT_TRUE(store_.close(second));
    work();
    EXPECT_TRUE(store_.rename("t.tmp", "final", kSecond));
    if (is_drained) {
      EXPECT_TRUE(drain(store_));
    } else {
      work();
    }
    EXPECT_TRUE(store_.close(third));
    if (is_drained) return;
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

// No commit has looked at the name since it refers to that version.
class DrainedFormerVersion : public FormerVersion {
 protected:
  DrainedFormerVersion() : FormerVersion(/*is_drained=*/true) {}
};

TEST_F(DrainedFormerVersion, IsKept) {
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
