// What counts as space until it was given back.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/testing/settling.h"

namespace kvcachefs {
namespace store_space_test {

using testing::SmallVolume;
using testing::TestStore;

// --- extents ---

TEST(StoreSettling, AnExtentStaysWhileAnythingInItIsRead) {
  StoreOptions options;
  options.extent_bytes = kMiB;
  TestStore store(options);
  for (int i = 0; i < 24; ++i) ASSERT_TRUE(store.write_file(std::to_string(i), store.payload(i, 100'000)));
  store.drain();  // more than two extents, so that the first is closed
  Handle* reader = store.open("0", {});
  store->drop_caches();
  for (int i = 0; i < 24; ++i) ASSERT_TRUE(store.unlink(std::to_string(i)));
  const uint64_t limit = store->status().limit_bytes;
  Handle* huge = store.create("huge");
  EXPECT_EQ(store->status().reclaimed_bytes, 0u);
  bool refused = false;  // what finds no room makes the keeper give back what it can
  store->allocate(huge, Store::AllocateMode::kKeepSize, 0, limit, [&](Status status) { refused = !status; });
  for (int i = 0; i < 100 && !refused; ++i) store->pump();
  EXPECT_TRUE(refused);
  EXPECT_GT(store->status().reclaimed_bytes, 0u);
  store->release(huge);
  ASSERT_TRUE(store.unlink("huge"));
  {
    auto reply = await<ReadReply>(store, [&](auto done) { store->read(reader, 0, 100'000, std::move(done)); });
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->bytes, 100'000u);
  }
  store->release(reader);
  store.drain();
  store.remount();
  EXPECT_LT(store.allocated_bytes(), 100'000u);
}

TEST(StoreSettling, ARawFileThatWasEmptiedIsReadFromWhereItIsWrittenNow) {
  StoreOptions options;
  options.raw_above_bytes = kMiB;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("a", ""));
  EXPECT_EQ(truncate(store, "a", 4 << 20), Code::kNoData);
  store.drain();
  Handle* handle = store.open("a", {.read = true, .write = true, .truncate = true});
  store.pwrite(handle, 0, store.payload(1, 50'000));
  EXPECT_EQ(store.read_file("a"), store.payload(1, 50'000));
  store.close(handle);
  store.remount();
  EXPECT_EQ(store.read_file("a"), store.payload(1, 50'000));
  EXPECT_LT(store.allocated_bytes(), 100'000u);
}

// What a life wrote behind the recorded end of a raw file was never there: whatever makes it longer afterwards.
TEST(StoreSettling, ARawFileHasNoBytesBehindItsEndAfterACrash) {
  StoreOptions options;
  options.raw_above_bytes = kMiB;
  TestStore store(options);
  for (const char* name : {"written", "sized", "allocated"}) {
    ASSERT_TRUE(store.write_file(name, ""));
    EXPECT_EQ(truncate(store, name, 2 * kMiB), Code::kNoData);
  }
  store.drain();
  for (const char* name : {"written", "sized", "allocated"}) {
    Handle* writer = store.open(name, {.read = true, .write = true});
    store.pwrite(writer, kMiB, store.payload(1, 5000));
    store.close(writer);
  }
  store.drain();
  store.die();
  size_t raw_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store.root())) {
    if (entry.path().extension() != ".raw") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * kMiB);
    EXPECT_TRUE(file << store.payload(2, 5000));
    ++raw_files;
  }
  EXPECT_EQ(raw_files, 3u);
  store.mount();
  Handle* writer = store.open("written", {.read = true, .write = true});
  store.pwrite(writer, 4 * kMiB - 1, "x");
  store.close(writer);
  EXPECT_EQ(truncate(store, "sized", 4 * kMiB), Code::kNoData);
  writer = store.open("allocated", {.read = true, .write = true});
  EXPECT_TRUE(await<void>(store, [&](auto done) { store->allocate(writer, Store::AllocateMode::kExtend, 0, 4 * kMiB, std::move(done)); }));
  store.close(writer);
  for (const char* name : {"written", "sized", "allocated"}) {
    std::string expected(4 * kMiB, '\0');
    expected.replace(kMiB, 5000, store.payload(1, 5000));
    if (name == std::string("written")) expected.back() = 'x';
    EXPECT_TRUE(store.read_file(name) == expected) << name;
  }
}

// --- a volume that is soon full ---

// A stored file that fallocate makes longer, and others that fill the volume: its writer finds the room that was promised, though
// those that wait for room have everything else sealed.
TEST(StoreSettling, WhatFallocatePromisedOutlivesTheRoundsOfAFullVolume) {
  constexpr uint64_t kBytes = 3 * kMiB, kPiece = 256 * kKiB;
  StoreOptions options;
  options.capacity_bytes = 32 * kMiB;
  options.keep_free_bytes = 1;
  options.evict = false;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("f", store.payload(1, 1'234'567)));
  store.drain();
  Handle* writer = store.open("f", {.read = true, .write = true});
  std::optional<Status> allocated;
  store->allocate(writer, Store::AllocateMode::kExtend, 0, kBytes, [&](Status status) { allocated = std::move(status); });
  for (int i = 0; i < 100 && !allocated; ++i) store->pump();
  ASSERT_TRUE(allocated && *allocated);
  for (int i = 0; i < 1000; ++i) {
    Handle* other = store.create("other" + std::to_string(i));
    const Code code = store.try_pwrite(other, 0, store.payload(i, 64 * kKiB));
    store->release(other);
    if (code == Code::kNoSpace) break;
    ASSERT_LT(i, 999) << "it is full at last";
  }
  for (int i = 0; i < 20; ++i) store->pump();
  for (uint64_t offset = 0; offset < kBytes; offset += kPiece)
    ASSERT_EQ(store.try_pwrite(writer, offset, store.payload(2, kPiece)), Code::kNoData) << offset;
  EXPECT_TRUE(store.close(writer));
}

TEST_F(SmallVolume, WhatIsRemovedCountsUntilItsBlocksWereGivenBack) {
  for (int i = 0; i < 8; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_TRUE(store_.write_file(name, store_.payload(i, 7 << 20))) << "there is room once the one before was given back";
    ASSERT_TRUE(drain(store_));
    expect_within_capacity();
    ASSERT_TRUE(store_.unlink(name));
    ASSERT_TRUE(drain(store_));
    expect_within_capacity();
  }
}

TEST_F(SmallVolume, WhatIsReplacedCountsUntilItsBlocksWereGivenBack) {
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(store_.write_file("t", store_.payload(i, 7 << 20)));
    ASSERT_TRUE(store_.rename("t", "a"));
    store_->pump();
    expect_within_capacity();
  }
  EXPECT_EQ(store_.read_file("a"), store_.payload(7, 7 << 20));
}

TEST_F(SmallVolume, ShrinkingTakesRoomForWhatIsLeft) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 12 << 20)));
  store_.drain();
  EXPECT_EQ(truncate(store_, "a", 10 << 20), Code::kNoSpace);
  expect_within_capacity();
  EXPECT_EQ(store_.read_file("a"), store_.payload(1, 12 << 20));
  EXPECT_EQ(truncate(store_, "a", 3 << 20), Code::kNoData);
  store_.drain();
  expect_within_capacity();
  EXPECT_EQ(store_.read_file("a"), store_.payload(1, 12 << 20).substr(0, 3 << 20));
  EXPECT_EQ(truncate(store_, "a", 0), Code::kNoData) << "takes nothing";
}

TEST_F(SmallVolume, GrowingWaitsForWhatIsBeingRemoved) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 12 << 20)));
  ASSERT_TRUE(store_.write_file("b", "x"));
  store_.drain();
  ASSERT_TRUE(store_.unlink("a"));
  EXPECT_EQ(truncate(store_, "b", 10 << 20), Code::kNoData);
  expect_within_capacity();
}

// The record of the first version went to the second, so its rename has to write it anew.
TEST_F(SmallVolume, ARenameThatWaitsForRoomMovesNoOtherFileOnceItsOwnIsGone) {
  const uint32_t first = 1, second = static_cast<uint32_t>(getpid());
  ASSERT_TRUE(store_.write_file("x.tmp", store_.payload(1, 2 << 20), first));
  ASSERT_TRUE(drain(store_));
  Handle* const other = store_.open_for_rewrite("x.tmp", second);
  ASSERT_NE(other, nullptr);
  store_.pwrite(other, 0, store_.payload(2, 2 << 20));
  ASSERT_TRUE(store_.close(other));
  ASSERT_TRUE(store_.write_file("old", store_.payload(3, 11 << 20)));
  ASSERT_TRUE(drain(store_));
  ASSERT_TRUE(store_.unlink("old"));
  std::optional<Status> answer;
  store_->rename(kRootId, "x.tmp", kRootId, "y", RenameMode::kReplace, {.thread_id = first}, [&](Status status) { answer = std::move(status); });
  ASSERT_FALSE(answer) << "waits for room";
  store_->unlink(kRootId, "x.tmp", {.thread_id = first}, [](const Status& gone) { EXPECT_TRUE(gone); });
  for (int i = 0; i < 1000 && !answer; ++i) store_->pump();
  ASSERT_TRUE(answer);
  ASSERT_FALSE(*answer);
  EXPECT_EQ(answer->error().code, Code::kNoSpace);
  EXPECT_FALSE(store_.exists("y"));
  EXPECT_EQ(store_.read_file("x.tmp"), store_.payload(2, 2 << 20));
}

TEST_F(SmallVolume, WhatAReaderHoldsIsNoRoomUntilItIsClosed) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 10 << 20)));
  store_.drain();
  Handle* reader = store_.open("a", {});
  ASSERT_TRUE(store_.unlink("a"));
  EXPECT_FALSE(store_.write_file("b", store_.payload(2, 10 << 20)));
  expect_within_capacity();
  ASSERT_TRUE(store_.unlink("b"));
  store_->release(reader);
  EXPECT_TRUE(store_.write_file("c", store_.payload(3, 10 << 20)));
  store_.drain();
  expect_within_capacity();
  EXPECT_EQ(store_.read_file("c"), store_.payload(3, 10 << 20));
}

TEST_F(SmallVolume, AFullVolumeIsNotSyncedForEveryRefusedWrite) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 15 << 20)));
  store_.drain();
  Handle* handle = store_.create("b");
  EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(2 << 20, 'x')), Code::kNoSpace);
  const uint64_t syncs = store_->status().syncs;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(2 << 20, 'x')), Code::kNoSpace);
  EXPECT_LE(store_->status().syncs, syncs + 1);
  store_.close(handle);
}

TEST_F(SmallVolume, NorForEveryRefusedFileThatIsRemovedAgain) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 15 << 20)));
  store_.drain();
  const uint64_t syncs = store_->status().syncs;
  for (int i = 0; i < 20; ++i) {
    Handle* handle = store_.create("t");
    EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(2 << 20, 'x')), Code::kNoSpace);
    store_.close(handle);
    EXPECT_TRUE(store_.unlink("t"));
  }
  EXPECT_LE(store_->status().syncs, syncs + 2);
}

// While it is written nothing of "a" can go.
TEST_F(SmallVolume, WhatARenamedFileReplacesIsRoomOnceItIsFinished) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 10 << 20)));
  store_.drain();
  Handle* handle = store_.create("t");
  store_.pwrite(handle, 0, "new");
  ASSERT_TRUE(store_.rename("t", "a"));
  Handle* other = store_.create("b");
  EXPECT_EQ(store_.try_pwrite(other, 0, std::string(8 << 20, 'x')), Code::kNoSpace);
  store_.close(other);
  EXPECT_TRUE(store_.unlink("b"));
  store_.close(handle);
  EXPECT_TRUE(store_.write_file("c", store_.payload(3, 8 << 20)));
}

uint64_t bytes_of_everything(const std::string& root) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

// They lie in the journal and in the index, which both count.
TEST(StoreSettling, SmallBodiesCountAgainstTheCapacityAndComeBack) {
  StoreOptions options;
  options.evict = false;
  options.capacity_bytes = 64 * kMiB;
  options.keep_free_bytes = 1;
  options.inline_below_bytes = 64 * kKiB;
  TestStore store(options);
  constexpr int kMost = 2000;
  constexpr uint64_t kSlackBytes = 4 * kMiB;
  int files = 0;
  const auto space_is_left = [&] {  // a create that finds none has upkeep look for some
    for (int tries = 0; tries < 5 && store->space().blocks_free == 0; ++tries) {
      if (auto made = store->create(kRootId, "x", 0644, {.write = true}, {})) {
        store->release(made->second);
        store.unlink("x");
      }
      for (int i = 0; i < 20; ++i) store->pump();
    }
    return store->space().blocks_free > 0;
  };
  const auto fill = [&] {
    for (files = 0; files < kMost && space_is_left() && store.try_write_file(std::to_string(files), store.payload(files, 60'000)); ++files)
      if (files % 50 == 0) {
        ASSERT_TRUE(drain(store));
      }
    store.unlink(std::to_string(files));  // if it was made
    ASSERT_TRUE(drain(store));
    EXPECT_LE(bytes_of_everything(store.root()), options.capacity_bytes + kSlackBytes);
    EXPECT_LE(store->status().physical_bytes, options.capacity_bytes + kSlackBytes);
  };
  fill();
  EXPECT_GT(files, 300);  // a body lies in the index, in a checkpoint, and has room in the next one
  EXPECT_LT(files, 600);
  EXPECT_EQ(store.read_file("0"), store.payload(0, 60'000));
  for (int i = 0; i < files; ++i) ASSERT_TRUE(store.unlink(std::to_string(i)));
  fill();
  EXPECT_GT(files, 200) << "what was removed from the journal is room again";
  store.remount();
  EXPECT_LE(store->status().physical_bytes, options.capacity_bytes + kSlackBytes);
  EXPECT_GT(store->status().physical_bytes, static_cast<uint64_t>(files) * 60'000);
}

}  // namespace store_space_test
}  // namespace kvcachefs
