// Bodies larger than memory or than a volume has bytes, bodies that could not be synced, and writes that wait for memory.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/testing/settling.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace store_spill_test {

using testing::TestStore;

// A store of its own whose volume may fail.
class FaultyStore {
 public:
  FaultyStore(StoreOptions options, FaultHook hook) {
    std::filesystem::create_directory(root());
    options.background = false;
    options.node = "test";
    auto posix = open_posix_volume(root(), {});
    EXPECT_TRUE(posix) << posix.error().message;
    auto opened = open_store(make_fault_volume(*posix, std::move(hook)), options, clock, "test");
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
  }
  Store& operator*() { return *store_; }
  ManualClock clock{1'700'000'000'000'000'000};

 private:
  std::string root() const { return beside_.root() + "/other"; }
  TestStore beside_;  // for its directory
  std::unique_ptr<Store> store_;
};

// --- holes ---

TEST(StoreSettling, APunchOfAnyLengthReturns) {
  constexpr uint64_t kBytes = 500 * kGiB;
  TestStore beside;  // for its directory
  StoreOptions options;
  options.background = false;
  options.node = "test";
  options.index_directory = beside.root() + "/index";
  options.memory_bytes = 64 * kMiB;
  options.raw_above_bytes = kTiB;
  options.evict = false;
  options.capacity_bytes = kTiB;
  options.keep_free_bytes = 1;
  auto opened = open_store(make_sim_volume(), options, system_clock(), "test");
  ASSERT_TRUE(opened) << opened.error().message;
  Store& store = **opened;
  auto made = store.create(kRootId, "a", 0644, {.read = true, .write = true}, {.thread_id = 1});
  ASSERT_TRUE(made) << made.error().message;
  Handle* handle = made->second;
  int good = 0;
  store.write(handle, 0, std::as_bytes(std::span("x")), [&](Result<size_t> result) { good += result ? 1 : 0; });
  SetAttributes change;
  change.size_bytes = kBytes;
  store.set_attributes(made->first.id, handle, change, {}, [&](Result<Stat> result) { good += result ? 1 : 0; });
  for (int round = 0; round < 100 && good < 2; ++round) store.pump();  // so much is to be claimed first
  store.allocate(handle, Store::AllocateMode::kPunchHole, 0, kBytes, [&](Status status) { good += status ? 1 : 0; });
  EXPECT_EQ(good, 3);
  auto data = store.seek_data(handle, kUnitBytes);
  EXPECT_FALSE(data);
  store.release(handle);
  store.unlink(kRootId, "a", {}, [&](Status status) { good += status ? 1 : 0; });
  EXPECT_EQ(good, 4);
  EXPECT_TRUE(store.close());
}

TEST(StoreSettling, WhatWasSpilledAndEmptiedLeavesNothingOnTheVolume) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* handle = store.create("a");
  for (uint64_t at = 0; at < 48 * kMiB; at += kMiB) store.pwrite(handle, at, std::string(kMiB, 'x'));
  EXPECT_GT(store.allocated_bytes(), 16 * kMiB);
  EXPECT_EQ(truncate(store, "a", 0), Code::kNoData);
  store.close(handle);
  store.drain();
  EXPECT_LT(store.allocated_bytes(), kMiB);
  EXPECT_EQ(store->status().staged_bytes, 0u);
}

// --- spilled bodies ---

TEST(StoreSettling, WhatWasSpilledAndThenCutOffReadsAsZeros) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* holes = store.create("holes");
  std::string expected(5 * kUnitBytes, '\0');
  for (int i = 0; i < 12; ++i) {
    const std::string piece = store.payload(i, kMiB);
    store.pwrite(holes, expected.size(), piece);
    expected += piece;
  }
  Handle* other = store.create("other");  // does not fit beside it: both are spilled
  for (int i = 0; i < 40; ++i) store.pwrite(other, static_cast<uint64_t>(i) * kMiB, store.payload(i, kMiB));
  store.truncate("holes", kUnitBytes);
  store.pwrite(holes, 12 * kMiB, "end");
  expected.assign(12 * kMiB, '\0');
  expected += "end";
  ASSERT_TRUE(store.close(holes));
  ASSERT_TRUE(store.close(other));
  drain_and_work(store);
  store->drop_caches();
  EXPECT_TRUE(store.read_file("holes") == expected);
}

// A seal writes what is left of it into the spill file, where it must not be looked for with what was cut off: not beside it, nor after one that
// came to nothing.
TEST(StoreSettling, AUnitThatWasSpilledAndCutIsReadAlsoAfterASealThatFailed) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  bool fails = false;
  int failed = 0;
  FaultyStore faulty(options, [&](const VolumeCall& call) {
    const bool now = fails && call.kind == VolumeCall::Kind::kTruncate && call.path.ends_with(".solo");
    failed += now;
    return Fault{.sys_errno = now ? 5 : 0};
  });
  Store& store = *faulty;
  const auto write_all = [&](Handle* handle, const std::string& bytes) {
    for (size_t at = 0; at < bytes.size(); at += kMiB) {
      std::atomic<bool> written = false;
      store.write(handle, at, std::as_bytes(std::span(bytes)).subspan(at, kMiB), [&](Result<size_t> result) { written = result.has_value(); });
      while (!written) store.pump();
    }
  };
  const auto make = [&](const char* name) {
    auto made = store.create(kRootId, name, 0644, {.read = true, .write = true}, {.thread_id = 1});
    return made.value().second;
  };
  Handle *cut = make("cut"), *other = make("other");
  std::string expected = TestStore::payload(1, 12 * kMiB);
  write_all(cut, expected);
  write_all(other, TestStore::payload(2, 40 * kMiB));  // does not fit beside it: both are spilled
  const auto resize = [&](uint64_t size_bytes) {
    SetAttributes change;
    change.size_bytes = size_bytes;
    std::atomic<bool> resized = false;
    store.set_attributes(store.object_of(cut), cut, change, {}, [&](Result<Stat> result) { resized = result.has_value(); });
    while (!resized) store.pump();
    expected.resize(size_bytes);
  };
  resize(5 * kUnitBytes - 1000);
  resize(8 * kUnitBytes);
  resize(3 * kUnitBytes + 5000);
  const auto reads_well = [&] {
    std::promise<std::string> answer;  // by a thread of the volume
    auto got = answer.get_future();
    store.read(cut, 0, expected.size(), [&](Result<ReadReply> reply) {
      std::string bytes = reply ? "" : reply.error().message;
      if (reply)
        for (const iovec& piece : reply->pieces) bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
      answer.set_value(std::move(bytes));
    });
    while (got.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) store.pump();
    return got.get() == expected;
  };
  const auto syncs = [&] {
    std::promise<bool> answer;
    auto synced = answer.get_future();
    store.fsync(cut, [&](Status status) { answer.set_value(status.has_value()); });
    while (synced.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) store.pump();
    return synced.get();
  };
  store.drop_caches();
  EXPECT_TRUE(reads_well());
  fails = true;
  EXPECT_FALSE(syncs());
  EXPECT_GT(failed, 0);
  store.drop_caches();
  EXPECT_TRUE(reads_well()) << "after a seal that failed";
  fails = false;
  faulty.clock.advance_ns(6'000'000'000);
  EXPECT_TRUE(syncs());
  store.drop_caches();
  EXPECT_TRUE(reads_well()) << "after one that did not";
  store.release(cut);
  store.release(other);
  EXPECT_TRUE(store.close());
}

// Only its beginning lies in the spill file: what follows it there is not where its bytes end.
TEST(StoreSettling, APartOfAUnitThatWasSpilledIsReadWithWhatFollows) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* gap = store.create("gap");
  std::string expected = store.payload(1, 100 * kKiB);
  store.pwrite(gap, 0, expected);
  expected.resize(kUnitBytes);
  for (int i = 0; i < 12; ++i) {
    const std::string piece = store.payload(i + 2, kMiB);
    store.pwrite(gap, expected.size(), piece);
    expected += piece;
  }
  Handle* other = store.create("other");  // does not fit beside it: both are spilled
  for (int i = 0; i < 40; ++i) store.pwrite(other, static_cast<uint64_t>(i) * kMiB, store.payload(i, kMiB));
  EXPECT_TRUE(store.read_file("gap") == expected);
  ASSERT_TRUE(store.close(gap));
  ASSERT_TRUE(store.close(other));
  EXPECT_TRUE(store.read_file("gap") == expected);
}

// --- what could not be synced ---

TEST(StoreSettling, ABodyThatCouldNotBeSyncedIsNotPassedThroughUntilItLiesElsewhere) {
  StoreOptions options;
  options.memory_bytes = 64 * kMiB;
  options.pack_below_bytes = 64 * kKiB;
  bool fails = false;
  FaultyStore faulty(options, [&](const VolumeCall& call) {
    return Fault{.sys_errno = fails && call.kind == VolumeCall::Kind::kSync && call.path.ends_with(".solo") ? 5 : 0};
  });
  Store& store = *faulty;
  const auto drain_once = [&](bool sync) {
    std::optional<Status> drained;
    store.drain(sync, [&](Status status) { drained = std::move(status); });
    for (int i = 0; i < 1000 && !drained; ++i) store.pump();
    return drained.value_or(fail(Code::kCanceled, "never answered")).has_value();
  };
  EXPECT_TRUE(drain_once(true));
  for (int i = 0; i < 20; ++i) store.pump();  // upkeep was due; from now on it is not
  auto made = store.create(kRootId, "f", 0644, {.read = true, .write = true}, {.thread_id = 1});
  ASSERT_TRUE(made) << made.error().message;
  int good = 0;
  const std::string body = TestStore::payload(1, 200'000);
  store.write(made->second, 0, std::as_bytes(std::span(body)), [&](Result<size_t> result) { good += result ? 1 : 0; });
  store.flush(made->second, [&](Status status) { good += status ? 1 : 0; });
  store.release(made->second);
  EXPECT_EQ(good, 2);
  EXPECT_TRUE(drain_once(false));
  fails = true;
  EXPECT_FALSE(drain_once(true));
  fails = false;
  store.drop_caches();
  EXPECT_LT(store.backing_file(made->first.id).descriptor, 0);
  faulty.clock.advance_ns(6'000'000'000);
  for (int i = 0; i < 20; ++i) store.pump();
  store.drop_caches();
  EXPECT_GE(store.backing_file(made->first.id).descriptor, 0);
  EXPECT_TRUE(store.close());
}

// --- who waits for memory ---

TEST(StoreSettling, AWriteThatWaitsForMemoryIsNotOvertakenBySmallerOnes) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("third", store.payload(3, kUnitBytes)));
  store.drain();
  store->drop_caches();
  Handle* third = store.open("third", {.read = true, .write = true});
  Handle* first = store.create("first");
  Handle* second = store.create("second");
  const std::string piece = store.payload(1, kMiB);
  const auto bytes = std::as_bytes(std::span(piece));
  std::vector<int> done;
  const auto write = [&](Handle* handle, uint64_t offset, size_t length, int name) {
    store->write(handle, offset, bytes.first(length), [&done, name](Result<size_t> result) { done.push_back(result ? name : -1); });
  };
  write(second, 0, kUnitBytes, 0);  // and with the others less than a megabyte is left of what is not for readers
  uint64_t end = 0;
  for (int i = 0; i < 13; ++i, end += kMiB) write(first, end, kMiB, 0);
  ASSERT_EQ(done, std::vector<int>(14, 0));
  done.clear();
  write(first, end, kMiB, 1);
  ASSERT_TRUE(done.empty()) << "it was to wait";
  write(second, kUnitBytes, kUnitBytes, 2);
  store->allocate(third, Store::AllocateMode::kZeroRange, 0, kUnitBytes, [&done](Status status) { done.push_back(status ? 4 : -1); });
  EXPECT_TRUE(done.empty()) << "what was left was taken by who came later";
  write(second, 0, kUnitBytes, 3);
  EXPECT_EQ(done, std::vector<int>{3}) << "this one needs no memory";
  for (int step = 0; step < 1'000'000 && done.size() < 4; ++step) store->pump();
  EXPECT_EQ(done, (std::vector<int>{3, 1, 2, 4}));
  store.close(third);
  store.close(first);
  store.close(second);
}

}  // namespace store_spill_test
}  // namespace kvcachefs
