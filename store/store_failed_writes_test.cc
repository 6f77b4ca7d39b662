// A write that failed is not forgotten by what the kernel does next: after a direct or asynchronous write that failed it truncates
// the file to the size that it knows, by the same handle, before the caller hears of anything.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/store.h"
#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_failed_writes_test {

using testing::TestStore;

constexpr uint64_t kCapacityBytes = 24 * kMiB, kBodyBytes = 4 * kMiB;

StoreOptions small_volume() {
  StoreOptions options;
  options.evict = false;
  options.capacity_bytes = kCapacityBytes;
  options.keep_free_bytes = kMiB;
  options.raw_above_bytes = 16 * kMiB;
  options.memory_bytes = 64 * kMiB;
  return options;
}

class FailedWrites : public ::testing::Test {
 protected:
  // Files until `left_bytes` or less are left.
  void fill(uint64_t left_bytes) {
    for (int i = 0;; ++i) {
      const uint64_t room = store_->space().blocks_free * store_->space().block_bytes;
      if (room <= left_bytes + 64 * kKiB) break;
      fills_.push_back("fill" + std::to_string(i));
      const uint64_t size = std::min<uint64_t>(kMiB, align_down(room - left_bytes - 32 * kKiB, 4096));  // a name is to be made after that
      if (!store_.try_write_file(fills_.back(), std::string(size, 'f'))) break;
      store_.drain();
    }
  }
  void empty() {
    for (const std::string& name : fills_) store_.unlink(name);
    fills_.clear();
    store_.settle();
  }
  Handle* create(const std::string& name, bool direct) {
    auto made = store_->create(kRootId, name, 0644, {.read = true, .write = true, .direct = direct}, {.thread_id = 1});
    EXPECT_TRUE(made) << made.error().message;
    id_ = made ? made->first.id : ObjectId{};
    return made ? made->second : nullptr;
  }
  // As the kernel sends one write() of a caller: in requests of 1 MiB, all of them under way. How many failed.
  int write(Handle* handle, uint64_t offset, uint64_t length, WriteOf of = WriteOf::kCall) {
    auto failed = std::make_shared<int>(0);
    auto open = std::make_shared<size_t>(0);
    const std::string bytes(kMiB, 'x');
    for (uint64_t at = offset; at < offset + length; at += kMiB) {
      ++*open;
      const auto piece = std::as_bytes(std::span(bytes)).first(std::min(kMiB, offset + length - at));
      store_->write(handle, at, piece, [failed, open](Result<size_t> result) {
        if (!result) ++*failed;
        --*open;
      }, of);
    }
    for (int i = 0; i < 100'000 && *open > 0; ++i) store_->pump();
    EXPECT_EQ(*open, 0u);
    return *failed;
  }
  bool truncate(Handle* handle, uint64_t size_bytes) {
    SetAttributes change;
    change.size_bytes = size_bytes;
    auto done = std::make_shared<std::optional<bool>>();
    store_->set_attributes(id_, handle, change, {.thread_id = 1}, [done](Result<Stat> stat) { *done = stat.has_value(); });
    for (int i = 0; i < 100'000 && !*done; ++i) store_->pump();
    return done->value_or(false);
  }
  template <class Call>
  Code code_of(const Call& call) {
    auto code = std::make_shared<std::optional<Code>>();
    call([code](Status status) { *code = status ? Code::kNoData : status.error().code; });
    for (int i = 0; i < 100'000 && !*code; ++i) store_->pump();
    return code->value_or(Code::kBusy);
  }
  Code flush(Handle* handle) {
    return code_of([&](StatusCompletion done) { store_->flush(handle, std::move(done)); });
  }
  Code fsync(Handle* handle) {
    return code_of([&](StatusCompletion done) { store_->fsync(handle, std::move(done)); });
  }

  TestStore store_{small_volume()};
  std::vector<std::string> fills_;
  ObjectId id_;
};

TEST_F(FailedWrites, TheKernelsOwnTruncationDoesNotEmptyTheBody) {
  for (const uint64_t left : {uint64_t{0}, 3 * kMiB / 2, 5 * kMiB / 2})
    for (const uint64_t header : {uint64_t{0}, uint64_t{4096}})
      for (const bool again : {false, true}) {
        if (header > left) continue;
        SCOPED_TRACE("room for " + std::to_string(left) + ", header of " + std::to_string(header) + ", " + (again ? "repeated" : "given up"));
        fill(left);
        Handle* handle = create("t.tmp", /*direct=*/again);  // asynchronous ones are not direct
        if (header > 0) {
          EXPECT_EQ(write(handle, 0, header), 0);
        }
        EXPECT_GT(write(handle, header, kBodyBytes - header), 0);
        EXPECT_TRUE(truncate(handle, header)) << "as the kernel does";
        if (again) {
          empty();
          EXPECT_EQ(write(handle, header, kBodyBytes - header), 0);
          EXPECT_EQ(flush(handle), Code::kNoData);
          store_->release(handle);
          EXPECT_TRUE(store_.rename("t.tmp", "final"));
          EXPECT_EQ(store_.read_file("final"), std::string(kBodyBytes, 'x'));
          store_.unlink("final");
        } else {
          EXPECT_EQ(flush(handle), Code::kNoSpace);
          EXPECT_FALSE(store_.rename("t.tmp", "final"));
          store_->release(handle);
          EXPECT_FALSE(store_.rename("t.tmp", "final"));
          EXPECT_FALSE(store_.exists("final"));
          store_.unlink("t.tmp");
          empty();
        }
      }
}

TEST_F(FailedWrites, ATruncationToTheSizeThatItHasClearsNothing) {
  for (const bool direct : {false, true}) {
    SCOPED_TRACE(direct);
    fill(0);
    Handle* handle = create("t.tmp", direct);
    EXPECT_EQ(write(handle, 0, kMiB), 1);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(truncate(handle, 0));
    EXPECT_EQ(flush(handle), Code::kNoSpace);
    store_->release(handle);
    EXPECT_FALSE(store_.rename("t.tmp", "final"));
    store_.unlink("t.tmp");
    empty();
  }
}

TEST_F(FailedWrites, WhoEmptiesTheFileMayWriteLess) {
  for (const bool by_path : {false, true}) {
    SCOPED_TRACE(by_path);
    fill(5 * kMiB / 2);
    Handle* handle = create("t.tmp", /*direct=*/false);
    EXPECT_EQ(write(handle, 0, kMiB), 0);
    EXPECT_GT(write(handle, kMiB, kBodyBytes), 0);
    EXPECT_TRUE(truncate(handle, kMiB)) << "as the kernel does";
    EXPECT_TRUE(truncate(by_path ? nullptr : handle, 0)) << "as the writer does";
    EXPECT_EQ(write(handle, 0, kMiB), 0);
    EXPECT_EQ(flush(handle), Code::kNoData);
    store_->release(handle);
    EXPECT_TRUE(store_.rename("t.tmp", "final"));
    EXPECT_EQ(store_.read_file("final"), std::string(kMiB, 'x'));
    store_.unlink("final");
    empty();
  }
}

// A log, or a database: it was told that these bytes are kept.
TEST_F(FailedWrites, WhatWasSyncedStaysWhenALaterWriteDoesNotFit) {
  for (const bool emptied_before : {false, true}) {
    SCOPED_TRACE(emptied_before);
    if (emptied_before) {
      ASSERT_TRUE(store_.write_file("log", std::string(100'000, 'o')));
    }
    Handle* handle = emptied_before ? store_.open_for_rewrite("log", 1) : create("log", /*direct=*/false);
    ASSERT_NE(handle, nullptr);
    id_ = store_->object_of(handle);
    EXPECT_EQ(write(handle, 0, kMiB), 0);
    ASSERT_TRUE(sync_file(store_, handle));
    fill(kMiB / 2);
    EXPECT_GT(write(handle, kMiB, kBodyBytes), 0);
    EXPECT_TRUE(truncate(handle, kMiB)) << "as the kernel does";
    EXPECT_EQ(flush(handle), Code::kNoSpace);
    store_->release(handle);
    EXPECT_EQ(store_.read_file("log"), std::string(kMiB, 'x'));
    empty();
    store_.crash();
    EXPECT_EQ(store_.read_file("log"), std::string(kMiB, 'x'));
    store_.unlink("log");
  }
}

// As ext4: the caller knows, and the file is as it was.
TEST_F(FailedWrites, ACallThatWasRefusedLeavesARawFileAsItWas) {
  Handle* handle = create("pool.tmp", /*direct=*/true);
  EXPECT_TRUE(truncate(handle, 20 * kMiB));
  EXPECT_EQ(write(handle, 0, kMiB), 0);
  fill(kMiB);
  EXPECT_GT(write(handle, 4 * kMiB, 8 * kMiB), 0);
  EXPECT_EQ(fsync(handle), Code::kNoData);
  EXPECT_EQ(flush(handle), Code::kNoData);
  store_->release(handle);
  EXPECT_TRUE(store_.rename("pool.tmp", "pool"));
  store_.unlink("pool");
  empty();
}

TEST_F(FailedWrites, AnFsyncOfARawFileThatLacksBytesOfAMappingKeepsTheRestAndTellsOfThem) {
  Handle* handle = create("pool", /*direct=*/true);
  EXPECT_TRUE(truncate(handle, 20 * kMiB));
  EXPECT_EQ(write(handle, 0, 4096), 0);
  fill(2 * kMiB);
  EXPECT_GT(write(handle, 4 * kMiB, 8 * kMiB, WriteOf::kPages), 0);
  EXPECT_EQ(fsync(handle), Code::kNoSpace);
  EXPECT_EQ(fsync(handle), Code::kNoSpace) << "until the bytes are written";
  EXPECT_EQ(flush(handle), Code::kNoSpace);
  store_->release(handle);
  EXPECT_FALSE(store_.rename("pool", "other"));
  store_.crash();
  ASSERT_TRUE(store_.exists("pool"));
  EXPECT_EQ(store_.read_file("pool").substr(0, 4097), std::string(4096, 'x') + '\0');
}

TEST_F(FailedWrites, OfARawFileToo) {
  Handle* handle = create("pool.tmp", /*direct=*/true);
  EXPECT_TRUE(truncate(handle, 20 * kMiB));
  EXPECT_TRUE(truncate(handle, kMiB)) << "raw it stays";
  fill(kMiB);
  EXPECT_GT(write(handle, 0, 8 * kMiB, WriteOf::kPages), 0);
  EXPECT_TRUE(truncate(handle, 0)) << "as the kernel does";
  EXPECT_EQ(flush(handle), Code::kNoSpace);
  store_->release(handle);
  EXPECT_FALSE(store_.rename("pool.tmp", "pool"));
  store_.unlink("pool.tmp");
  empty();
}

}  // namespace store_failed_writes_test
}  // namespace kvcachefs
