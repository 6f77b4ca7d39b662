// Big bodies in RAM that are passed through: what a client sees that reads their file while the store goes on. One thread.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/store.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_memory_files_test {

using testing::TestStore;
constexpr size_t kSize = 9 * kMiB + 1234;

StoreOptions options(uint64_t memory_bytes = 256 * kMiB) {
  StoreOptions options;
  options.memory_bytes = memory_bytes;
  options.memory_file_min_bytes = 4 * kMiB;
  options.pack_below_bytes = 32 * kMiB;  // nothing is passed through from the volume
  return options;
}

class StoreMemoryFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Status status = store->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
    ASSERT_TRUE(store.write_file("first", store.payload(0, kSize)));  // the size of its kind is known from now on
  }
  BackingFile backing(const std::string& name) {
    auto found = store->lookup(kRootId, name, {.thread_id = 1});
    return found ? store->backing_file(found->id) : BackingFile{};
  }
  // Reads from the volume; the store does not know of a client that maps bodies.
  void read_into_blocks(const std::string& name, const std::string& body) {
    ASSERT_TRUE(store.write_file(name, body));
    store.drain();
    store.settle();
    store->drop_caches();
    EXPECT_EQ(backing(name).descriptor, -1);
    EXPECT_EQ(store.read_file(name), body);
    EXPECT_EQ(backing(name).descriptor, -1) << "as far as is known nobody maps";
  }
  // As the driver says it of a read that fills pages of a mapping.
  void note_mapped_read(const std::string& name) {
    Handle* handle = store.open(name, {});
    ASSERT_NE(handle, nullptr);
    store->note_mapped_read(handle);
    store->release(handle);
  }
  static std::string content(const BackingFile& file) {
    struct stat info {};
    if (file.descriptor < 0 || fstat(file.descriptor, &info) != 0) return "none";
    std::string bytes(static_cast<size_t>(info.st_size), 0);
    return pread(file.descriptor, bytes.data(), bytes.size(), 0) == info.st_size ? bytes : "short";
  }
  bool rewrite(const std::string& name, const std::string& bytes) {
    Handle* handle = store.open_for_rewrite(name, 1);
    if (handle == nullptr) return false;
    store.pwrite(handle, 0, bytes);
    return store.close(handle);
  }
  bool is_there(const std::string& name, const std::string& expected) {
    const BackingFile file = backing(name);
    return file.in_memory && content(file) == expected;
  }
  TestStore store{options()};
};

TEST_F(StoreMemoryFiles, ABodyIsPassedThroughBeforeAndAfterItIsSealed) {
  EXPECT_EQ(backing("first").descriptor, -1) << "its size was not known";
  const std::string body = store.payload(1, kSize);
  ASSERT_TRUE(store.write_file("body", body));
  EXPECT_TRUE(is_there("body", body));
  store.drain();
  store.settle();
  EXPECT_TRUE(is_there("body", body));
  EXPECT_EQ(store.read_file("body"), body);
  store.remount();
  EXPECT_EQ(store.read_file("body"), body) << "as it was sealed from the file";
}

TEST_F(StoreMemoryFiles, NotWhileSomebodyWrites) {
  Handle* handle = store.create("busy");
  store.pwrite(handle, 0, store.payload(1, kSize));
  EXPECT_EQ(backing("busy").descriptor, -1);
  ASSERT_TRUE(store.close(handle));
  EXPECT_TRUE(is_there("busy", store.payload(1, kSize)));
}

TEST_F(StoreMemoryFiles, WritingAfterwardsLeavesTheFileAlone) {
  const std::string before = store.payload(1, kSize);
  ASSERT_TRUE(store.write_file("body", before));
  BackingFile held = backing("body");
  ASSERT_EQ(content(held), before);
  Handle* handle = store.open("body", {.read = true, .write = true});
  store.pwrite(handle, 300'000, "changed");
  store.pwrite(handle, kSize - 3, "longer");
  ASSERT_TRUE(store.close(handle));
  std::string after = before;
  after.replace(300'000, 7, "changed");
  after.replace(kSize - 3, 3, "longer");
  EXPECT_EQ(store.read_file("body"), after);
  EXPECT_EQ(content(held), before);
  EXPECT_EQ(backing("body").descriptor, -1) << "it is not whole in one file any more";
  store.truncate("body", 1'000'000);
  EXPECT_EQ(store.read_file("body"), after.substr(0, 1'000'000));
  EXPECT_EQ(content(held), before);
  held = {};
  store.drain();
  store.remount();
  EXPECT_EQ(store.read_file("body"), after.substr(0, 1'000'000));
}

TEST_F(StoreMemoryFiles, WritingOnBehindAUnitThatIsBeingRead) {
  const std::string body = store.payload(1, kSize);
  for (const size_t odd : {size_t{48}, kUnitBytes - 1, kUnitBytes}) {
    const std::string name = "body" + std::to_string(odd);
    const size_t so_far = 3 * kMiB - odd;
    Handle* handle = store.create(name);
    store.pwrite(handle, 0, body.substr(0, so_far));
    Result<ReadReply> held;  // the last unit must be copied for the next write, the ones behind it have no block yet
    store->read(handle, so_far - 10, 10, [&](Result<ReadReply> reply) { held = std::move(reply); });
    ASSERT_TRUE(held);
    store.pwrite(handle, so_far, body.substr(so_far));
    ASSERT_TRUE(store.close(handle));
    EXPECT_EQ(store.read_file(name), body) << odd;
  }
}

TEST_F(StoreMemoryFiles, CutShortAndGrownAgainItReadsZeros) {
  const std::string before = store.payload(1, kSize);
  ASSERT_TRUE(store.write_file("body", before));
  const BackingFile held = backing("body");
  store.truncate("body", kSize - 500'000);
  store.truncate("body", kSize + 100'000);
  std::string after = before.substr(0, kSize - 500'000);
  after.resize(kSize + 100'000);
  EXPECT_EQ(store.read_file("body"), after);
  EXPECT_EQ(content(held), before);
}

TEST_F(StoreMemoryFiles, ReplacedRemovedAndEvictedTheFileStays) {
  std::vector<std::string> bodies;
  std::vector<BackingFile> held;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "body" + std::to_string(i);
    bodies.push_back(store.payload(i, kSize));
    ASSERT_TRUE(store.write_file(name, bodies.back()));
    held.push_back(backing(name));
    ASSERT_EQ(content(held.back()), bodies.back());
  }
  ASSERT_TRUE(store.write_file("other", store.payload(9, kSize)));
  ASSERT_TRUE(store.rename("other", "body0"));
  ASSERT_TRUE(store.unlink("body1"));
  ASSERT_TRUE(rewrite("body2", store.payload(8, 5 * kMiB)));
  store.settle();
  store->drop_caches();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(store.write_file("filler" + std::to_string(i), store.payload(100 + i, kSize)));
  store.settle();
  for (size_t i = 0; i < held.size(); ++i) EXPECT_EQ(content(held[i]), bodies[i]) << i;
  EXPECT_EQ(store.read_file("body2"), store.payload(8, 5 * kMiB));
  EXPECT_EQ(store.read_file("body3"), bodies[3]);
}

TEST_F(StoreMemoryFiles, MemoryOfAMappedFileCountsUntilItIsLetGoOf) {
  ASSERT_TRUE(store.write_file("body", store.payload(1, kSize)));
  BackingFile file = backing("body");
  void* mapped = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file.descriptor, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  file = {};
  ASSERT_TRUE(store.unlink("body"));
  ASSERT_TRUE(store.unlink("first"));
  store.drain();
  store.settle();
  store->drop_caches();
  EXPECT_GE(store->status().memory_used_bytes, kSize);
  EXPECT_GE(store->status().memory_file_passed_bytes, kSize);
  EXPECT_EQ(std::string_view(static_cast<char*>(mapped), kSize), store.payload(1, kSize));
  munmap(mapped, kSize);
  store->drop_caches();
  EXPECT_EQ(store->status().memory_file_passed_bytes, 0u);
  EXPECT_EQ(store->status().memory_used_bytes, 0u);
}

TEST_F(StoreMemoryFiles, WhatIsReadFromTheVolumeComesIntoAFileForThoseWhoMap) {
  const std::string body = store.payload(1, kSize);
  read_into_blocks("body", body);
  store->drop_caches();
  note_mapped_read("first");
  EXPECT_EQ(store.read_file("body"), body);
  EXPECT_TRUE(is_there("body", body));
}

TEST_F(StoreMemoryFiles, WhatIsInBlocksIsMovedIntoAFileForThoseWhoMap) {
  const std::string body = store.payload(1, kSize);
  read_into_blocks("body", body);
  const uint64_t moved_before = store->status().memory_files_moved;
  note_mapped_read("body");
  store.settle();
  EXPECT_EQ(store->status().memory_files_moved, moved_before + 1);
  EXPECT_TRUE(is_there("body", body));
  EXPECT_EQ(store.read_file("body"), body);
  note_mapped_read("body");
  store.settle();
  EXPECT_EQ(store->status().memory_files_moved, moved_before + 1) << "it is in a file";
  const uint64_t used = store->status().memory_used_bytes;
  store->drop_caches();
  EXPECT_LT(store->status().memory_used_bytes, used) << "it can leave RAM";
  EXPECT_EQ(store.read_file("body"), body);
}

TEST_F(StoreMemoryFiles, WhatIsNotSealedYetIsMovedToo) {
  Handle* handle = store.open_for_rewrite("first", 1);
  ASSERT_NE(handle, nullptr);
  note_mapped_read("first");
  EXPECT_EQ(store->status().memory_files_moved, 0u) << "somebody writes it";
  const std::string body = store.payload(7, kSize);
  store.pwrite(handle, 0, body);
  ASSERT_TRUE(store.close(handle));
  note_mapped_read("first");
  store.settle();
  EXPECT_TRUE(is_there("first", body));
  store.drain();
  store.remount();
  EXPECT_EQ(store.read_file("first"), body);
}

TEST_F(StoreMemoryFiles, ASizeThatIsToldIsEnough) {
  Handle* handle = store.create("told", 77);  // a thread that never wrote
  store.truncate("told", kSize);
  store.pwrite(handle, 0, store.payload(1, kSize));
  ASSERT_TRUE(store.close(handle));
  EXPECT_TRUE(is_there("told", store.payload(1, kSize)));
}

TEST_F(StoreMemoryFiles, AWrongGuessIsHarmless) {
  ASSERT_TRUE(store.write_file("small", "a few bytes"));
  EXPECT_EQ(store.read_file("small"), "a few bytes");
  ASSERT_TRUE(store.write_file("small2", std::string(700'000, 'x')));
  EXPECT_EQ(store.read_file("small2"), std::string(700'000, 'x'));
  const std::string larger = store.payload(3, 30 * kMiB);
  ASSERT_TRUE(store.write_file("larger", larger));
  EXPECT_EQ(store.read_file("larger"), larger);
  store.drain();
  store.remount();
  EXPECT_EQ(store.read_file("larger"), larger);
}

TEST_F(StoreMemoryFiles, SparseBodiesAndSmallWritesInAnyOrder) {
  ASSERT_TRUE(store.write_file("second", store.payload(2, kSize)));
  std::string expected(kSize, 0);
  Handle* handle = store.create("sparse");
  for (int i = 20; i >= 0; --i) {
    const auto at = static_cast<uint64_t>(i) * 400'001;
    store.pwrite(handle, at, "here");
    expected.replace(at, 4, "here");
  }
  store.pwrite(handle, kSize - 1, std::string(1, 0));
  ASSERT_TRUE(store.close(handle));
  EXPECT_EQ(store.read_file("sparse"), expected);
  if (const BackingFile file = backing("sparse"); file.descriptor >= 0) {
    EXPECT_EQ(content(file), expected);
  }
  store.drain();
  store.remount();
  EXPECT_EQ(store.read_file("sparse"), expected);
}

TEST_F(StoreMemoryFiles, NobodyWaitsForAFileThatALowerLimitForbids) {
  ASSERT_TRUE(store.write_file("large", store.payload(1, 40 * kMiB)));
  ASSERT_TRUE(store.write_file("large2", store.payload(2, 40 * kMiB)));
  Handle* handle = store.create("large3");  // of 40 MiB, as far as is known
  ASSERT_TRUE(store->set_option("memory", "32M"));
  const std::string body = store.payload(3, kMiB);
  store.pwrite(handle, 0, body);
  ASSERT_TRUE(store.close(handle));
  EXPECT_EQ(store.read_file("large3"), body);
  EXPECT_EQ(store.read_file("large2"), store.payload(2, 40 * kMiB));
}

TEST_F(StoreMemoryFiles, WhatAReaderKeptFromEvictionIsEvictedLater) {
  const std::string body = store.payload(1, kSize);
  ASSERT_TRUE(store.write_file("body", body));
  Handle* reader = store.open("body", {});
  EXPECT_TRUE(is_there("body", body));
  Handle* writer = store.open("body", {.read = true, .write = true});
  store.pwrite(writer, 300'000, "changed");  // a clone, beside the units of the frozen file
  ASSERT_TRUE(store.close(writer));
  store.drain();
  store->drop_caches();
  EXPECT_GT(store->status().memory_file_passed_bytes, 0u);
  ASSERT_TRUE(store.close(reader));
  store->drop_caches();
  EXPECT_EQ(store->status().memory_file_passed_bytes, 0u);
  EXPECT_EQ(store.read_file("body"), std::string(body).replace(300'000, 7, "changed"));
}

TEST_F(StoreMemoryFiles, OffMeansNone) {
  ASSERT_TRUE(store->set_option("memory_file_min", "0"));
  ASSERT_TRUE(store.write_file("body", store.payload(1, kSize)));
  EXPECT_EQ(backing("body").descriptor, -1);
  EXPECT_EQ(store.read_file("body"), store.payload(1, kSize));
}

TEST(StoreMemoryFilesInLittleMemory, MoreIsWrittenAndReadThanFits) {
  TestStore store(options(40 * kMiB));
  if (Status status = store->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 8; ++i) {
      const std::string name = "body" + std::to_string(i), body = store.payload(10 * round + i, kSize);
      ASSERT_TRUE(store.write_file(name + ".tmp", body));
      ASSERT_TRUE(store.rename(name + ".tmp", name));
      auto found = store->lookup(kRootId, name, {.thread_id = 1});
      ASSERT_TRUE(found);
      const BackingFile file = store->backing_file(found->id);
      EXPECT_EQ(store.read_file(name), body);
      EXPECT_LE(store->status().memory_used_bytes, 40 * kMiB);
      EXPECT_LE(store->status().memory_file_passed_bytes, 20 * kMiB);
    }
  for (int i = 0; i < 8; ++i) EXPECT_EQ(store.read_file("body" + std::to_string(i)), store.payload(20 + i, kSize));
}

// Files are taken by a guess, and come back as a whole.
TEST(StoreMemoryFilesInLittleMemory, WhatLiesInFilesThatAreTooLargeIsGivenUp) {
  constexpr uint64_t kGuessBytes = 8 * kMiB;
  TestStore store(options(64 * kMiB));
  if (Status status = store->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
  const std::string body = store.payload(1, kGuessBytes);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(store.write_file("large" + std::to_string(i), body));
  store.drain();
  store->drop_caches();
  std::vector<Handle*> writers;
  for (int i = 0; i < 7; ++i) {
    writers.push_back(store.create("little" + std::to_string(i)));
    store.pwrite(writers.back(), 0, "little");
  }
  for (Handle* writer : writers) ASSERT_TRUE(store.close(writer));
  store.drain();
  EXPECT_GT(store->status().memory_used_bytes, 48 * kMiB) << "no file was taken: nothing is tested";
  EXPECT_EQ(store->status().memory_dirty_bytes, 0u);
  ASSERT_TRUE(store.write_file("next", body));
  EXPECT_EQ(store.read_file("next"), body);
  EXPECT_EQ(store.read_file("little0"), "little");
}

// Readers have a share that writers leave to them, whatever is pinned in RAM beside it.
TEST(StoreMemoryFilesInLittleMemory, WritersDoNotTakeWhatIsPinnedForCleanMemory) {
  TestStore store(options(64 * kMiB));
  if (Status status = store->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
  const std::string body = store.payload(1, 8 * kMiB), old = store.payload(2, kMiB);
  std::vector<Handle*> readers;
  int in_files = 0;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "open" + std::to_string(i);
    ASSERT_TRUE(store.write_file(name, body));
    readers.push_back(store.open(name, {}));
    auto found = store->lookup(kRootId, name, {.thread_id = 1});
    ASSERT_TRUE(found);
    in_files += store->backing_file(found->id).in_memory ? 1 : 0;
  }
  ASSERT_GE(in_files, 2) << "more than the readers' share: else nothing is tested";
  ASSERT_TRUE(store.write_file("old", old));
  store.drain();
  store->drop_caches();
  Handle* writer = store.create("new");
  const std::string piece = store.payload(3, kMiB);
  uint64_t at = 0, written = 0;
  for (; written == at && at < 64 * kMiB; at += kMiB)
    store->write(writer, at, std::as_bytes(std::span(piece)), [&](Result<size_t> bytes) { written += bytes.value_or(0); });
  EXPECT_LT(written, at);
  Handle* reader = store.open("old", {});
  std::atomic<bool> read = false;
  store->read(reader, 0, kMiB, [&](Result<ReadReply> reply) { read = reply && reply->bytes == kMiB; });
  for (int i = 0; i < 60'000 && !read; ++i) usleep(1000);  // the store is not pumped: nothing of the writers' comes back
  EXPECT_TRUE(read);
  store.settle();
  for (Handle* each : readers) store->release(each);
  store->release(reader);
  store.close(writer);
}

// A file that is held by a waiting request could not be spilled.
TEST(StoreMemoryFilesInLittleMemory, WhoWaitsForMemoryHoldsNoFile) {
  constexpr uint64_t kFileBytes = 14 * kMiB;  // four are all that writers may have
  constexpr uint64_t kOldBytes = 10 * kMiB;   // and this is more than is left to readers
  TestStore store(options(64 * kMiB));
  if (Status status = store->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
  const std::string old = store.payload(0, kOldBytes), body = store.payload(1, kFileBytes + kMiB);
  ASSERT_TRUE(store.write_file("old", old));
  store.drain();
  store->drop_caches();
  Handle* reader = store.open("old", {});
  std::vector<Handle*> writers;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "body" + std::to_string(i);
    writers.push_back(store.create(name));
    store.truncate(name, kFileBytes);
    for (uint64_t at = 0; at < kFileBytes; at += kMiB) store.pwrite(writers.back(), at, body.substr(at, kMiB));
  }
  ASSERT_EQ(store->status().memory_file_bytes, 4 * kFileBytes) << "all memory is in their files";
  std::atomic<int> done{0};
  store->read(reader, 0, kOldBytes, [&](Result<ReadReply> reply) { done += reply && reply->bytes == kOldBytes ? 1 : 100; });
  for (Handle* writer : writers)
    store->write(writer, kFileBytes, std::as_bytes(std::span(body)).subspan(kFileBytes),
                 [&](Result<size_t> result) { done += result ? 1 : 100; });
  EXPECT_EQ(done, 0);
  for (int step = 0; step < 600'000 && done < 5; ++step)
    if (!store->pump()) usleep(100);
  EXPECT_EQ(done, 5);
  for (Handle* writer : writers) EXPECT_TRUE(store.close(writer));
  store->release(reader);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(store.read_file("body" + std::to_string(i)) == body) << i;
}

}  // namespace store_memory_files_test
}  // namespace kvcachefs
