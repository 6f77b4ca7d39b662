#include "tools/load/chunk_io.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "tools/load/payload.h"
#include "tools/load/test_directory.h"

namespace kvcachefs {
namespace chunk_io_test {

constexpr uint64_t kChunkBytes = 64 * kKiB;

class ChunkIoTest : public ::testing::TestWithParam<AccessStyle> {
 protected:
  AccessStyle style() const { return GetParam(); }
  uint64_t bytes() const { return file_bytes(style(), kChunkBytes); }
  ChunkName name(uint64_t key) const { return chunk_name(style(), key, 1); }
  std::string path(uint64_t key) const { return directory_.path() + "/" + name(key).path; }

  Result<bool> store(const ChunkName& chunk) {
    auto arena = Arena::create(bytes());
    Payload(chunk.payload_seed).fill(arena->span().first(bytes()));
    return io_.store(chunk, arena->span().first(bytes()));
  }

  TestDirectory directory_;
  ChunkIo io_{directory_.path(), style(), 7};
  SlotPool pool_ = *SlotPool::create(bytes(), 2, 2, kMiB);
};

TEST_P(ChunkIoTest, WhatIsStoredIsFoundAndReadBack) {
  const ChunkName chunk = name(1);
  ASSERT_FALSE(*io_.probe(chunk));
  ASSERT_FALSE(*io_.load(chunk, bytes(), pool_.at(0)));
  const auto stored = store(chunk);
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_TRUE(*stored);
  EXPECT_TRUE(*io_.probe(chunk));
  const auto loaded = io_.load(chunk, bytes(), pool_.at(0));
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(*loaded);
  EXPECT_EQ(pool_.at(0).content().size(), bytes());
  EXPECT_TRUE(pool_.at(0).verify());
  EXPECT_TRUE(pool_.at(0).sample_matches());
}

TEST_P(ChunkIoTest, StoringTwiceIsFineAndLeavesNoTempFile) {
  ASSERT_TRUE(*store(name(1)));
  EXPECT_EQ(*store(name(1)), style() != AccessStyle::kVllm) << "vLLM looks first";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
    EXPECT_EQ(entry.path().string().find("tmp", directory_.path().size()), std::string::npos) << entry.path();
  }
}

TEST_P(ChunkIoTest, AWrongByteIsFoundAndNamed) {
  const ChunkName chunk = name(1);
  ASSERT_TRUE(store(chunk));
  std::fstream file(path(1), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(50001);
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(50001);
  file.put(flipped);
  file.close();
  ASSERT_TRUE(*io_.load(chunk, bytes(), pool_.at(0)));
  const Status verified = pool_.at(0).verify();
  ASSERT_FALSE(verified);
  EXPECT_NE(verified.error().message.find("50001"), std::string::npos) << verified.error().message;
  EXPECT_NE(verified.error().message.find(chunk.path), std::string::npos);
}

TEST_P(ChunkIoTest, ForeignContentIsFound) {
  ASSERT_TRUE(store(name(1)));
  ASSERT_TRUE(store(name(2)));
  std::filesystem::copy_file(path(2), path(1), std::filesystem::copy_options::overwrite_existing);
  ASSERT_TRUE(*io_.load(name(1), bytes(), pool_.at(0)));
  // The slot refers to a temporary name only until the next use of it.
  const ChunkName chunk = name(1);
  ASSERT_TRUE(*io_.load(chunk, bytes(), pool_.at(0)));
  EXPECT_FALSE(pool_.verify_and_clear(2));
}

TEST_P(ChunkIoTest, AShortFileIsAnError) {
  const ChunkName chunk = name(1);
  ASSERT_TRUE(store(chunk));
  std::filesystem::resize_file(path(1), 5000);
  const auto loaded = io_.load(chunk, bytes(), pool_.at(0));
  ASSERT_FALSE(loaded);
  EXPECT_NE(loaded.error().message.find("short"), std::string::npos) << loaded.error().message;
}

std::string test_name(const ::testing::TestParamInfo<AccessStyle>& info) {
  std::string name(access_style_name(info.param));
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Styles, ChunkIoTest,
                         ::testing::Values(AccessStyle::kRead, AccessStyle::kOdirect, AccessStyle::kMmap,
                                           AccessStyle::kVllm, AccessStyle::kLmcacheGds, AccessStyle::kSglang),
                         test_name);

TEST(ChunkIo, AFailedStoreNamesTheFile) {
  ChunkIo io("/proc", AccessStyle::kSglang, 1);
  const auto stored = io.store(chunk_name(AccessStyle::kSglang, 1, 0), {});
  ASSERT_FALSE(stored);
  EXPECT_NE(stored.error().message.find("/proc/"), std::string::npos) << stored.error().message;
}

TEST(ChunkName, DiffersByKeyAndRankAndIsStable) {
  const ChunkName one = chunk_name(AccessStyle::kVllm, 1, 0);
  EXPECT_EQ(one.path, chunk_name(AccessStyle::kVllm, 1, 0).path);
  EXPECT_NE(one.path, chunk_name(AccessStyle::kVllm, 2, 0).path);
  EXPECT_NE(one.path, chunk_name(AccessStyle::kVllm, 1, 1).path);
  EXPECT_NE(one.payload_seed, chunk_name(AccessStyle::kVllm, 2, 0).payload_seed);
}

TEST(AccessStyle, ParsesItsOwnNamesOnly) {
  EXPECT_EQ(*parse_access_style("lmcache-gds"), AccessStyle::kLmcacheGds);
  const auto unknown = parse_access_style("cufile");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("sglang"), std::string::npos);
}

}  // namespace chunk_io_test
}  // namespace kvcachefs
