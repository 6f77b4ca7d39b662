// A change that meets a full volume: what is left of the body.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/testing/settling.h"

namespace kvcachefs {
namespace store_refused_change_test {

using testing::SmallVolume;
using testing::TestStore;

// What is left of a body of which a change met a full volume.
class RefusedChange : public SmallVolume {
 protected:
  static constexpr uint64_t kBytes = 7 * kMiB;
  void SetUp() override {
    ASSERT_TRUE(store_.write_file("a", body_));
    store_.drain();
  }
  Handle* open_again() { return store_.open("a", {.read = true, .write = true}); }
  Code allocate(Handle* handle, Store::AllocateMode mode, uint64_t offset, uint64_t length) {
    auto done = await<void>(store_, [&](auto reply) { store_->allocate(handle, mode, offset, length, std::move(reply)); });
    return done ? Code::kNoData : done.error().code;
  }
  void expect_left(const std::string& expected) {
    EXPECT_TRUE(store_.read_file("a") == expected);
    ASSERT_TRUE(drain(store_));
    store_->drop_caches();
    EXPECT_EQ(store_->status().staged_bytes, 0u);
    EXPECT_TRUE(store_.read_file("a") == expected);
    store_.remount();
    EXPECT_TRUE(store_.read_file("a") == expected);
    expect_within_capacity();
  }
  const std::string body_ = store_.payload(1, kBytes);
  const std::string too_much_ = std::string(3 * kMiB, 'x');
};

TEST_F(RefusedChange, AnAppendLeavesTheVersionBefore) {
  Handle* handle = open_again();
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, WhatWasJournaledBetweenStays) {
  Handle* handle = open_again();
  store_.pwrite(handle, 0, "new");
  ASSERT_TRUE(sync_file(store_, handle));
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left("new" + body_.substr(3));
}

TEST_F(RefusedChange, WhatWasAcceptedBeforeItIsNotMixedIn) {
  Handle* handle = open_again();
  store_.pwrite(handle, 0, "new");
  store_.pwrite(handle, kBytes, "longer");
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, ACutBeforeItIsUndoneToo) {
  Handle* handle = open_again();
  EXPECT_EQ(truncate(store_, "a", 5 << 20), Code::kNoData);
  store_.pwrite(handle, 0, "new");
  EXPECT_EQ(store_.try_pwrite(handle, 5 * kMiB, std::string(6 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, OnlyTheLastWriterTakesItBack) {
  Handle* handle = open_again();
  Handle* other = open_again();
  store_.pwrite(other, 0, "new");
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_EQ(store_.read_file("a").substr(0, 3), "new");
  EXPECT_FALSE(store_.close(other));
  expect_left(body_);
}

// The caller of fsync was told that it stays. What nobody synced does not, although the journal may have had it.
TEST_F(RefusedChange, APartOfWhatIsWrittenAnewIsAVersionIfItWasSynced) {
  for (const bool synced : {false, true}) {
    SCOPED_TRACE(synced);
    Handle* handle = store_.create("f");
    store_.pwrite(handle, 0, "a part");
    if (synced) {
      ASSERT_TRUE(sync_file(store_, handle));
    }
    EXPECT_EQ(store_.try_pwrite(handle, 6, std::string(10 * kMiB, 'x')), Code::kNoSpace);
    EXPECT_FALSE(store_.close(handle));
    const std::string left = synced ? "a part" : "";
    EXPECT_EQ(store_.read_file("f"), left);
    store_.drain();
    store_.remount();
    EXPECT_EQ(store_.read_file("f"), left);
    store_.unlink("f");
  }
}

TEST_F(RefusedChange, WhatWasTruncatedToBeWrittenAnewIsEmptied) {
  Handle* handle = store_.open("a", {.write = true, .truncate = true});
  store_.pwrite(handle, 0, "new");
  EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(16 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left("");
}

TEST_F(RefusedChange, ARefusedOverwriteOrPunchLeavesTheVersionBefore) {
  ASSERT_TRUE(store_.write_file("b", store_.payload(2, 6 << 20)));
  store_.drain();  // a cannot be written a second time
  Handle* handle = open_again();
  EXPECT_EQ(store_.try_pwrite(handle, 0, "new"), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_TRUE(store_.read_file("a") == body_);
  handle = open_again();
  EXPECT_EQ(allocate(handle, Store::AllocateMode::kPunchHole, 1000, 5 << 20), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, ATemporaryNameIsNotPublishedWithoutIt) {
  ASSERT_TRUE(store_.write_file("t", "the header"));
  store_.drain();
  Handle* handle = store_.open("t", {.write = true});
  EXPECT_EQ(store_.try_pwrite(handle, 4096, std::string(9 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  handle = store_.open("t", {.write = true});
  store_.pwrite(handle, 100, "and something else");
  EXPECT_TRUE(store_.close(handle)) << "nothing is wrong with this one";
  store_.drain();
  EXPECT_FALSE(store_.rename("t", "final"));
  EXPECT_FALSE(link(store_, "t", "final"));
  ASSERT_TRUE(store_.unlink("a"));
  handle = store_.open("t", {.write = true});
  store_.pwrite(handle, 4096, std::string(9 * kMiB, 'y'));
  EXPECT_TRUE(store_.close(handle));
  EXPECT_TRUE(store_.rename("t", "final")) << "now it has it all";
}

TEST_F(RefusedChange, GoodWritesAfterwardsCount) {
  Handle* handle = store_.create("f");
  EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(10 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_EQ(store_.read_file("f"), "");
  store_.drain();
  ASSERT_TRUE(store_.unlink("a"));
  handle = store_.open("f", {.read = true, .write = true});
  const std::string content = store_.payload(3, kMiB);
  store_.pwrite(handle, 0, content);
  EXPECT_TRUE(store_.close(handle));
  ASSERT_TRUE(drain(store_));
  store_.remount();
  EXPECT_TRUE(store_.read_file("f") == content);
}

TEST_F(RefusedChange, ARepetitionOfTheWriteMakesUpForIt) {
  const std::string content = store_.payload(3, 10 * kMiB);
  Handle* handle = store_.create("f");
  store_.pwrite(handle, 0, content.substr(0, kMiB));
  EXPECT_EQ(store_.try_pwrite(handle, kMiB, content.substr(kMiB)), Code::kNoSpace);
  const auto sync = [&] { return sync_file(store_, handle).has_value(); };
  EXPECT_FALSE(sync());
  ASSERT_TRUE(store_.unlink("a"));
  for (uint64_t at = kMiB; at < content.size(); at += kMiB) {
    EXPECT_FALSE(sync()) << at;
    store_.pwrite(handle, at, content.substr(at, kMiB));
  }
  EXPECT_TRUE(sync());
  EXPECT_TRUE(store_.close(handle));
  store_.crash();
  EXPECT_TRUE(store_.read_file("f") == content);
}

TEST_F(RefusedChange, WhatWasEmptiedAtAFlushIsMissingToo) {
  Handle* handle = store_.create("f");
  store_.pwrite(handle, 0, "head");
  EXPECT_EQ(store_.try_pwrite(handle, 4, std::string(10 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(await<void>(store_, [&](auto done) { store_->flush(handle, std::move(done)); }));
  ASSERT_TRUE(store_.unlink("a"));
  store_.pwrite(handle, 4, std::string(10 * kMiB, 'x'));
  EXPECT_FALSE(store_.close(handle)) << "its head is gone";
  EXPECT_EQ(store_.read_file("f"), "");
}

TEST(StoreSettling, WhatWasSpilledOfARefusedChangeLeavesTheVolume) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.evict = false;
  options.capacity_bytes = 64 * kMiB;
  options.keep_free_bytes = 1;
  TestStore store(options);
  const std::string body = store.payload(1, 24 * kMiB);
  ASSERT_TRUE(store.write_file("a", body));
  store.drain();
  Handle* handle = store.open("a", {.write = true});
  for (uint64_t at = 0; at < 36 * kMiB; at += kMiB) store.pwrite(handle, at, std::string(kMiB, 'x'));
  EXPECT_GT(store.allocated_bytes(), 36 * kMiB);
  EXPECT_EQ(store.try_pwrite(handle, 36 * kMiB, std::string(8 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store.close(handle));
  store.drain();
  EXPECT_TRUE(store.read_file("a") == body);
  EXPECT_LT(store.allocated_bytes(), 25 * kMiB);
  EXPECT_EQ(store->status().staged_bytes, 0u);
  store.remount();
  EXPECT_TRUE(store.read_file("a") == body);
}

}  // namespace store_refused_change_test
}  // namespace kvcachefs
