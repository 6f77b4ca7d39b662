// Where data and holes lie, what fallocate gives and promises, read times, and what a sync of a directory keeps.
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/store.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_holes_test {

using testing::TestStore;

StoreOptions small_volume() {
  StoreOptions options;
  options.evict = false;
  options.capacity_bytes = 48 * kMiB;
  options.keep_free_bytes = kMiB;
  options.raw_above_bytes = 16 * kMiB;
  options.pack_below_bytes = kMiB;
  options.memory_bytes = 64 * kMiB;
  return options;
}

class Holes : public ::testing::Test {
 protected:
  template <class T, class Call>
  Result<T> wait(Call call) {
    auto answer = std::make_shared<std::optional<Result<T>>>();
    auto there = std::make_shared<std::atomic<bool>>(false);  // some come on a thread of the volume
    call([answer, there](Result<T> result) {
      answer->emplace(std::move(result));
      *there = true;
    });
    for (int i = 0; i < 1'000'000 && !*there; ++i) store_->pump();
    if (!*there) return fail(Code::kCanceled, "never answered");
    return std::move(**answer);
  }
  Status allocate(Handle* handle, Store::AllocateMode mode, uint64_t offset, uint64_t length) {
    return wait<void>([&](StatusCompletion done) { store_->allocate(handle, mode, offset, length, std::move(done)); });
  }
  // UINT64_MAX: none.
  uint64_t seek(Handle* handle, Store::SeekFor what, uint64_t offset) {
    auto found = wait<uint64_t>([&](auto done) { store_->seek(handle, what, offset, std::move(done)); });
    if (!found) {
      EXPECT_EQ(found.error().code, Code::kNoData) << found.error().message;
    }
    return found.value_or(UINT64_MAX);
  }
  uint64_t data(Handle* handle, uint64_t offset) { return seek(handle, Store::SeekFor::kData, offset); }
  uint64_t hole(Handle* handle, uint64_t offset) { return seek(handle, Store::SeekFor::kHole, offset); }
  Stat find(const std::string& name) {
    auto found = store_->lookup(kRootId, name, {.thread_id = 1});
    EXPECT_TRUE(found);
    return found.value_or(Stat{});
  }
  Status sync_root() {
    return wait<void>([&](StatusCompletion done) { store_->sync_directory(kRootId, std::move(done)); });
  }
  void fill() {
    for (int i = 0;; ++i) {
      if (!store_.try_write_file("fill" + std::to_string(i), std::string(kMiB, 'f'))) break;
      store_.drain();
    }
  }

  TestStore store_{small_volume()};
};

TEST_F(Holes, AreExactWhereverTheBodyLies) {
  using enum Store::AllocateMode;
  const auto check = [&](Handle* handle, uint64_t size, const std::string& where) {
    SCOPED_TRACE(where + ", " + format_size(size));
    EXPECT_EQ(data(handle, 0), 0u);
    EXPECT_EQ(hole(handle, 0), 8192u);
    EXPECT_EQ(hole(handle, 8191), 8192u);
    EXPECT_EQ(data(handle, 8192), 12'288u);
    EXPECT_EQ(data(handle, 9000), 12'288u);
    EXPECT_EQ(hole(handle, 12'288), 300u * kKiB);
    EXPECT_EQ(hole(handle, 301 * kKiB), 301u * kKiB);
    EXPECT_EQ(data(handle, 300 * kKiB), 304u * kKiB);
    EXPECT_EQ(hole(handle, 304 * kKiB), size);
    EXPECT_EQ(data(handle, size - 1), size - 1);
    EXPECT_EQ(data(handle, size), UINT64_MAX);
    EXPECT_EQ(hole(handle, size), UINT64_MAX);
  };
  for (const auto& [size, kind] : {std::pair{700 * kKiB + 5, "packed"}, std::pair{2 * kMiB + 77, "solo"}, std::pair{17 * kMiB, "raw"}}) {
    Handle* handle = store_.create(kind);
    if (std::string(kind) == "raw") store_.truncate(kind, size);
    for (uint64_t at = 0; at < size; at += kMiB) store_.pwrite(handle, at, std::string(std::min(kMiB, size - at), 'd'));
    EXPECT_TRUE(allocate(handle, kPunchHole, 8192, 4096));
    EXPECT_TRUE(allocate(handle, kZeroRangeKeepSize, 300 * kKiB, 4096));
    if (std::string(kind) == "raw") {  // its file has blocks there
      EXPECT_TRUE(allocate(handle, kPunchHole, 300 * kKiB, 4096));
    }
    check(handle, size, std::string(kind) + " in RAM");
    EXPECT_TRUE(store_.close(handle));
    store_.drain();
    handle = store_.open(kind, {.read = true});
    check(handle, size, std::string(kind) + " and sealed");
    store_->drop_caches();
    check(handle, size, std::string(kind) + " on the volume");
    EXPECT_TRUE(store_.close(handle));
    store_.unlink(kind);
  }
}

TEST_F(Holes, WhatFallocateGaveHasBlocksAndDoesNotGrow) {
  using enum Store::AllocateMode;
  Handle* handle = store_.create("f");
  EXPECT_TRUE(allocate(handle, kExtend, 4095, 2));
  EXPECT_TRUE(store_.close(handle));
  EXPECT_EQ(find("f").blocks_512, 16u);
  handle = store_.open("f", {.read = true, .write = true});
  store_.pwrite(handle, 4095, "xx");
  EXPECT_EQ(find("f").blocks_512, 16u);
  EXPECT_TRUE(allocate(handle, kKeepSize, kMiB, kMiB));
  EXPECT_EQ(find("f").size_bytes, 4097u);
  EXPECT_GE(find("f").blocks_512, 16u + kMiB / 512);
  EXPECT_TRUE(store_.close(handle));
}

TEST_F(Holes, ZeroRangeMayKeepTheSize) {
  using enum Store::AllocateMode;
  for (const uint64_t size : {uint64_t{1'000'000}, 17 * kMiB}) {
    const std::string name = "z" + std::to_string(size);
    Handle* handle = store_.create(name);
    store_.truncate(name, size);  // the larger one is raw
    store_.pwrite(handle, 0, std::string(1'000'000, 'd'));
    EXPECT_TRUE(allocate(handle, kZeroRangeKeepSize, 900'000, 1'000'000));
    std::string expected = std::string(900'000, 'd');
    expected.resize(size);
    EXPECT_EQ(store_.read_file(name), expected);
    EXPECT_TRUE(allocate(handle, kZeroRange, size - 10, 100));
    expected.resize(size + 90);
    EXPECT_EQ(store_.read_file(name), expected);
    EXPECT_TRUE(store_.close(handle));
    store_.unlink(name);
  }
}

TEST_F(Holes, FallocatesPromiseOutlivesASync) {
  using enum Store::AllocateMode;
  Handle* handle = store_.create("pool");
  EXPECT_TRUE(allocate(handle, kExtend, 0, 8 * kMiB));
  EXPECT_TRUE(wait<void>([&](StatusCompletion done) { store_->fsync(handle, std::move(done)); }));
  store_.drain();
  fill();
  for (uint64_t at = 0; at < 8 * kMiB; at += kMiB) store_.pwrite(handle, at, std::string(kMiB, 'p'));
  EXPECT_TRUE(store_.close(handle));
  EXPECT_EQ(store_.read_file("pool"), std::string(8 * kMiB, 'p'));
  store_.unlink("pool");
  store_.settle();
}

TEST_F(Holes, RoomThatWasKeptIsGivenUpAtTheLastClose) {
  using enum Store::AllocateMode;
  const uint64_t before = store_->space().blocks_free;
  Handle* handle = store_.create("pool");
  EXPECT_TRUE(allocate(handle, kExtend, 0, 8 * kMiB));
  EXPECT_TRUE(wait<void>([&](StatusCompletion done) { store_->fsync(handle, std::move(done)); }));
  EXPECT_TRUE(store_.close(handle));
  store_.unlink("pool");
  store_.drain();
  store_.settle();
  EXPECT_GE(store_->space().blocks_free + 32, before);
}

TEST_F(Holes, ASyncOfADirectoryKeepsItsRenames) {
  EXPECT_TRUE(store_.write_file("tmp", std::string(100'000, 'a')));
  EXPECT_TRUE(store_.rename("tmp", "final"));
  EXPECT_TRUE(store_.write_file("closed", "c"));
  Handle* open = store_.create("open.tmp");
  store_.pwrite(open, 0, std::string(5000, 'o'));
  EXPECT_TRUE(store_.rename("open.tmp", "renamed while it is open"));
  Handle* written = store_.create("being written");
  store_.pwrite(written, 0, "half");
  EXPECT_TRUE(sync_root());
  static auto* const lost_in_the_crash = new std::vector<Handle*>();  // never freed: LeakSanitizer finds them here
  *lost_in_the_crash = {open, written};
  store_.crash();
  EXPECT_EQ(store_.read_file("final"), std::string(100'000, 'a'));
  EXPECT_EQ(store_.read_file("closed"), "c");
  EXPECT_EQ(store_.read_file("renamed while it is open"), std::string(5000, 'o'));
  EXPECT_FALSE(store_.exists("being written")) << "whole or absent";
  EXPECT_FALSE(store_.exists("tmp"));
  EXPECT_FALSE(store_.exists("open.tmp"));
}

TEST_F(Holes, ReadTimesAreRelative) {
  const auto read = [&](OpenRequest how) { EXPECT_TRUE(store_.close(store_.open("f", how))); };
  EXPECT_TRUE(store_.write_file("f", "bytes"));
  const int64_t made = find("f").atime_ns;
  read({.read = false, .write = true});
  EXPECT_EQ(find("f").atime_ns, made) << "nothing is read";
  read({.read = true, .keeps_read_time = true});
  EXPECT_EQ(find("f").atime_ns, made) << "O_NOATIME";
  read({.read = true});
  const int64_t first = find("f").atime_ns;
  EXPECT_GT(first, made);
  read({.read = true});
  EXPECT_EQ(find("f").atime_ns, first) << "it is after the last change already";
}

TEST_F(Holes, ReadTimesOutliveTheMount) {
  EXPECT_TRUE(store_.write_file("f", "bytes"));
  store_.drain();
  const int64_t made = find("f").atime_ns;
  EXPECT_TRUE(store_.close(store_.open("f", {.read = true})));
  const int64_t read = find("f").atime_ns;
  EXPECT_GT(read, made);
  store_.remount();
  EXPECT_EQ(find("f").atime_ns, read);
}

// Others may need it to write out what makes room.
TEST(StoreHoles, ATruncationThatWaitsForRoomHoldsNoMemory) {
  StoreOptions options;
  options.capacity_bytes = 40 * kMiB;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("f", TestStore::payload(1, 10 * kMiB)));
  store.drain();
  ASSERT_TRUE(store.write_file("gone", TestStore::payload(2, 10 * kMiB)));
  store.drain();
  for (int i = 0; store->status().physical_bytes < 33 * kMiB; ++i) {
    ASSERT_TRUE(store.write_file("other" + std::to_string(i), TestStore::payload(3, kMiB)));
    store.drain();
  }
  store->drop_caches();
  ASSERT_EQ(store->status().memory_used_bytes, 0u);
  const auto found = store->lookup(kRootId, "f", {.thread_id = 1});
  ASSERT_TRUE(found);
  ASSERT_TRUE(store.unlink("gone"));
  std::optional<Result<Stat>> answer;
  SetAttributes change;
  change.size_bytes = 9 * kMiB + 5;
  store->set_attributes(found->id, nullptr, change, {.thread_id = 1}, [&](Result<Stat> stat) { answer = std::move(stat); });
  EXPECT_FALSE(answer) << "there was room at once";
  EXPECT_EQ(store->status().memory_used_bytes, 0u);
  for (int i = 0; i < 1000 && !answer; ++i) store->pump();
  ASSERT_TRUE(answer);
  ASSERT_TRUE(*answer) << answer->error().message;
  EXPECT_EQ((*answer)->size_bytes, 9 * kMiB + 5);
  EXPECT_TRUE(store.read_file("f") == TestStore::payload(1, 10 * kMiB).substr(0, 9 * kMiB + 5));
}

}  // namespace store_holes_test
}  // namespace kvcachefs
