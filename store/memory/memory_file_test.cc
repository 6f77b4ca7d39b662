#include "store/memory/memory_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace memory_file_test {

using Got = MemoryFiles::Got;
constexpr uint64_t kChunk = MemoryFile::kChunkBytes;

size_t open_descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

class MemoryFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pool.set_give_spares([this](uint64_t bytes) { return files.drop_spares(bytes); });
    if (Status status = files.start(); !status) GTEST_SKIP() << status.error().message;
  }
  // A body of `bytes` in a file of its own, every unit marked with `mark`.
  std::vector<BlockPtr> body(uint64_t bytes, char mark) {
    MemoryFilePtr file;
    if (files.take(bytes, file) != Got::kYes) return {};
    const size_t units = div_ceil(bytes, kUnitBytes);
    if (files.grow(*file, 0, units) != Got::kYes) return {};
    std::vector<BlockPtr> blocks;
    for (size_t index = 0; index < units; ++index) {
      blocks.push_back(MemoryFile::make_block(file, index));
      std::memset(blocks.back()->data(), mark, kUnitBytes);
    }
    return blocks;
  }
  void expect_nothing_is_held() {
    files.settle();
    EXPECT_EQ(files.passed_bytes(), 0u);
    EXPECT_EQ(files.lingering_bytes(), 0u);
    EXPECT_EQ(pool.used_bytes(), 0u);
    EXPECT_EQ(files.file_bytes(), files.spare_bytes());
    EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
  }
  MemoryPool pool{64 * kMiB};
  MemoryFiles files{pool};
};

TEST_F(MemoryFilesTest, UnitsLieInOrderInTheFile) {
  auto blocks = body(9 * kMiB, 'a');
  ASSERT_EQ(blocks.size(), 36u);
  const MemoryFilePtr file = blocks[0]->file();
  EXPECT_EQ(pool.used_bytes(), 5 * kChunk);
  std::memcpy(blocks[7]->data(), "seven", 5);
  char text[5];
  ASSERT_EQ(pread(file->descriptor(), text, sizeof text, 7 * kUnitBytes), 5);
  EXPECT_EQ(std::memcmp(text, "seven", 5), 0);
  EXPECT_EQ(MemoryFile::make_block(file, 7), nullptr) << "it is taken";
  const std::byte* data = blocks[7]->data();
  blocks[7].reset();
  ASSERT_TRUE(file->offers(7));
  EXPECT_EQ(MemoryFile::make_block(file, 7)->data(), data);
  EXPECT_FALSE(file->offers(40)) << "it has no pages";
  EXPECT_TRUE(file->lacks_pages(40));
  EXPECT_FALSE(file->lacks_pages(80)) << "beyond its end";
}

TEST_F(MemoryFilesTest, OneThatWasNotPassedThroughIsUsedAgain) {
  auto blocks = body(8 * kMiB, 'a');
  const std::byte* data = blocks[0]->data();
  blocks.clear();
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_EQ(files.spare_bytes(), 8 * kMiB);
  blocks = body(8 * kMiB, 'b');
  EXPECT_EQ(blocks[0]->data(), data);
  EXPECT_EQ(files.spare_bytes(), 0u);
  EXPECT_EQ(files.file_bytes(), 8 * kMiB);
}

TEST_F(MemoryFilesTest, OneThatWasPassedThroughIsNot) {
  auto blocks = body(9 * kMiB + 5, 'a');
  const MemoryFilePtr file = blocks[0]->file();
  ASSERT_TRUE(files.freeze(*file, 9 * kMiB + 5));
  blocks.back()->shorten(kBlockBytes);
  ASSERT_TRUE(files.cut(*file));
  ASSERT_TRUE(files.cut(*file));
  EXPECT_TRUE(blocks[0]->frozen());
  EXPECT_EQ(files.grow(*file, 0, 1), Got::kNo);
  struct stat info {};
  ASSERT_EQ(fstat(file->descriptor(), &info), 0);
  EXPECT_EQ(info.st_size, static_cast<off_t>(9 * kMiB + 5));
  EXPECT_EQ(pool.used_bytes(), 9 * kMiB + kBlockBytes) << "what it had beyond came back";
  EXPECT_EQ(files.passed_bytes(), pool.used_bytes());
}

TEST_F(MemoryFilesTest, AMappingKeepsItsBytesAndItsMemoryCounts) {
  auto blocks = body(8 * kMiB, 'x');
  MemoryFilePtr file = blocks[0]->file();
  ASSERT_TRUE(files.freeze(*file, 8 * kMiB));
  ASSERT_TRUE(files.cut(*file));
  auto* mapped = static_cast<char*>(mmap(nullptr, 8 * kMiB, PROT_READ, MAP_SHARED, file->descriptor(), 0));
  ASSERT_NE(mapped, MAP_FAILED);
  blocks.clear();
  file.reset();
  EXPECT_EQ(files.settle(), 0u);
  EXPECT_EQ(pool.used_bytes(), 8 * kMiB);
  EXPECT_EQ(files.lingering_bytes(), 8 * kMiB);
  for (int i = 0; i < 8; ++i) body(8 * kMiB, 'y');
  EXPECT_TRUE(std::all_of(mapped, mapped + 8 * kMiB, [](char c) { return c == 'x'; }));
  EXPECT_GE(pool.used_bytes(), 8 * kMiB);
  munmap(mapped, 8 * kMiB);
  EXPECT_EQ(files.settle(), 8 * kMiB);
  expect_nothing_is_held();
}

TEST_F(MemoryFilesTest, AtMostHalfOfTheMemoryIsFrozen) {
  std::vector<std::vector<BlockPtr>> bodies;
  for (int i = 0; i < 5; ++i) bodies.push_back(body(8 * kMiB, 'a'));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(files.freeze(*bodies[static_cast<size_t>(i)][0]->file(), 8 * kMiB), i < 4);
  bodies.clear();
  expect_nothing_is_held();
}

TEST_F(MemoryFilesTest, FilesAndArenasShareOneLimit) {
  std::vector<BlockPtr> small;
  for (int i = 0; i < 128; ++i) small.push_back(pool.try_reserve(kUnitBytes).make_block(kUnitBytes));  // 32 MiB
  auto first = body(16 * kMiB, 'a');
  EXPECT_EQ(first.size(), 64u);
  MemoryFilePtr file;
  ASSERT_EQ(files.take(16 * kMiB, file), Got::kYes);
  EXPECT_EQ(files.grow(*file, 0, 128), Got::kNoMemory);
  EXPECT_LE(pool.used_bytes(), pool.limit_bytes());
  file.reset();
  small.clear();  // arenas are there, and nobody uses them: they make room
  auto second = body(40 * kMiB, 'b');
  EXPECT_EQ(second.size(), 160u);
  EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
  second.clear();
  first.clear();
  small.push_back(pool.try_reserve(48 * kMiB).make_block(kUnitBytes));  // and the other way round: spares do
  EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
}

TEST_F(MemoryFilesTest, TornArenasDoNotMakeRoom) {
  std::vector<BlockPtr> blocks;
  while (blocks.size() < 256) blocks.push_back(pool.try_reserve(kUnitBytes).make_block(kUnitBytes));
  for (size_t i = 0; i < blocks.size(); ++i)
    if (i % 8 != 0) blocks[i].reset();  // one block of each arena stays
  MemoryFilePtr file;
  EXPECT_EQ(files.take(8 * kMiB, file), Got::kNo) << "the pool has it, in pieces";
  EXPECT_EQ(file, nullptr);
  EXPECT_EQ(pool.used_bytes(), 32 * kUnitBytes);
  EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
}

TEST_F(MemoryFilesTest, SparesAreFewAndMadeAhead) {
  EXPECT_FALSE(files.prepare_ahead(16 * kMiB, 0)) << "nobody asked for any";
  body(4 * kMiB, 'a');
  while (files.prepare_ahead(16 * kMiB, 0)) {
  }
  EXPECT_EQ(files.spare_bytes(), 16 * kMiB);
  std::vector<std::vector<BlockPtr>> bodies;
  for (int i = 0; i < 12; ++i) bodies.push_back(body(4 * kMiB, 'b'));
  bodies.clear();
  files.settle();
  EXPECT_EQ(files.spare_bytes(), 16 * kMiB) << "a quarter of the limit";
  expect_nothing_is_held();
}

TEST_F(MemoryFilesTest, WhileMemoryIsUntouchedOnlyReadyFilesAreHad) {
  files.expect_warmer();
  MemoryFilePtr file;
  EXPECT_FALSE(files.wants_spares(16 * kMiB)) << "nobody asked for any";
  EXPECT_EQ(files.take(4 * kMiB, file), Got::kNo);
  EXPECT_TRUE(files.wants_spares(16 * kMiB));
  ASSERT_TRUE(files.prepare_ahead(16 * kMiB, 0));
  const uint64_t touched = pool.mapped_bytes();
  auto ready = body(4 * kMiB, 'a');
  EXPECT_EQ(ready.size(), 16u);
  EXPECT_EQ(pool.mapped_bytes(), touched);
  EXPECT_EQ(files.take(4 * kMiB, file), Got::kNo) << "the next one is not ready yet";
  while (pool.prepare_ahead(pool.limit_bytes())) {
  }
  EXPECT_FALSE(body(4 * kMiB, 'b').empty()) << "nothing is untouched: its pages come from the arenas";
  EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
  ready.clear();
  expect_nothing_is_held();
}

TEST_F(MemoryFilesTest, SparesAreMadeFromFreeArenas) {
  while (pool.prepare_ahead(32 * kMiB)) {
  }
  body(4 * kMiB, 'a');
  files.drop_spares(UINT64_MAX);
  const uint64_t mapped = pool.mapped_bytes();
  while (files.prepare_ahead(16 * kMiB, 24 * kMiB)) {
  }
  EXPECT_EQ(files.spare_bytes(), 16 * kMiB);
  EXPECT_EQ(pool.mapped_bytes(), mapped + 8 * kMiB) << "24 MiB of arenas stay ahead";
}

TEST_F(MemoryFilesTest, SparesOfOtherSizesMakeWay) {
  body(4 * kMiB, 'a');
  while (files.prepare_ahead(16 * kMiB, 0)) {
  }
  EXPECT_FALSE(files.wants_spares(16 * kMiB));
  files.expect_warmer();
  MemoryFilePtr file;
  ASSERT_EQ(files.take(6 * kMiB, file), Got::kNo) << "4 MiB are not enough";
  EXPECT_TRUE(files.wants_spares(16 * kMiB));
  ASSERT_TRUE(files.prepare_ahead(16 * kMiB, 0));
  EXPECT_FALSE(files.prepare_ahead(16 * kMiB, 0)) << "one that fits is there";
  EXPECT_EQ(files.spare_bytes(), 14 * kMiB);
  EXPECT_EQ(files.take(6 * kMiB, file), Got::kYes);
  file.reset();
  ASSERT_EQ(files.take(4 * kMiB, file), Got::kYes) << "those of the size before are not all gone";
  file.reset();
  expect_nothing_is_held();
}

TEST_F(MemoryFilesTest, OneIsCleanAsAWholeOrNotAtAll) {
  MemoryFilePtr file;
  ASSERT_EQ(files.take(4 * kMiB, file), Got::kYes);
  const uint64_t pages = pool.used_bytes();
  BlockPtr first = MemoryFile::make_block(file, 0), second = MemoryFile::make_block(file, 1);
  first->set_holds(Block::Holds::kClean);
  EXPECT_EQ(pool.held_bytes(), pages) << "its pages do not come back while the second block is there";
  second->set_holds(Block::Holds::kDirty);
  EXPECT_EQ(pool.dirty_bytes(), kUnitBytes);
  second->set_holds(Block::Holds::kClean);
  EXPECT_EQ(pool.held_bytes(), 0u);
  ASSERT_EQ(files.grow(*file, 16, 17), Got::kYes);
  EXPECT_GT(pool.used_bytes(), pages);
  EXPECT_EQ(pool.held_bytes(), 0u);
  file->set_pinned(true);
  EXPECT_EQ(pool.held_bytes(), pool.used_bytes());
  file->set_pinned(false);
  ASSERT_TRUE(files.freeze(*file, kUnitBytes + 5));
  ASSERT_TRUE(files.cut(*file));
  EXPECT_EQ(pool.held_bytes(), 0u);
  first.reset();
  EXPECT_EQ(pool.held_bytes(), 0u);
  second.reset();
  EXPECT_EQ(pool.held_bytes(), pool.used_bytes()) << "nothing of it can be given up by the body any more";
  file.reset();
  expect_nothing_is_held();
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_EQ(pool.dirty_bytes(), 0u);
}

TEST_F(MemoryFilesTest, FullOfBodiesNothingIsMade) {
  auto first = body(30 * kMiB, 'a'), second = body(30 * kMiB, 'b');
  MemoryFilePtr file;
  EXPECT_EQ(files.take(6 * kMiB, file), Got::kNoMemory) << "who gives memory up leaves a file";
  EXPECT_EQ(file, nullptr);
  second.clear();
  EXPECT_EQ(files.take(30 * kMiB, file), Got::kYes);
}

TEST_F(MemoryFilesTest, NothingLeaks) {
  const size_t before = open_descriptors();
  for (int i = 0; i < 2'000; ++i) {
    auto blocks = body(2 * kMiB + static_cast<uint64_t>(i % 5) * kMiB, 'a');
    ASSERT_FALSE(blocks.empty());
    if (i % 3 == 0) {
      const uint64_t bytes = blocks.size() * kUnitBytes;
      ASSERT_TRUE(files.freeze(*blocks[0]->file(), bytes));
      ASSERT_TRUE(files.cut(*blocks[0]->file()));
    }
    blocks.clear();
    files.settle();
  }
  expect_nothing_is_held();
  files.drop_spares(UINT64_MAX);
  EXPECT_EQ(files.file_bytes(), 0u);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(MemoryFilesTest, ManyThreads) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([this, t] {
      for (unsigned i = 0; i < 200; ++i) {
        auto blocks = body((1 + (t + i) % 4) * 2 * kMiB, static_cast<char>('a' + t));
        if (blocks.empty()) {
          files.settle();
          continue;
        }
        const auto sound = [&](const BlockPtr& block) {
          return std::all_of(block->data(), block->data() + kBlockBytes, [&](std::byte b) { return static_cast<char>(b) == static_cast<char>('a' + t); });
        };
        EXPECT_TRUE(std::all_of(blocks.begin(), blocks.end(), sound));
        if (i % 4 == 0 && files.freeze(*blocks[0]->file(), blocks.size() * kUnitBytes)) {
          EXPECT_TRUE(files.cut(*blocks[0]->file()));
        }
      }
    });
  for (auto& thread : threads) thread.join();
  expect_nothing_is_held();
}

TEST(MemoryFiles, WithoutATmpfsThereAreNone) {
  MemoryPool pool(64 * kMiB);
  MemoryFiles files(pool);
  MemoryFilePtr file;
  EXPECT_EQ(files.take(8 * kMiB, file), Got::kNo);
  EXPECT_EQ(files.settle(), 0u);
}

}  // namespace memory_file_test
}  // namespace kvcachefs
