#include "store/chain/stream.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcachefs {
namespace stream_test {

const std::string kHashA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const std::string kHashB = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";

// <model>_<hash>_r<rank>/<3 hex>/<2 hex>_g<group>/<hash>.bin
NameStem tree(const std::string& rank, const std::string& fan, const std::string& group, const std::string& hash) {
  NameStem at = directory_stem(kRootStem, "Llama-3.1-8B_0a1b2c3d4e5f_r" + rank);
  at = directory_stem(at, fan.substr(0, 3));
  at = directory_stem(at, fan.substr(3, 2) + "_g" + group);
  return file_stem(at, hash + ".bin");
}

TEST(NameStem, HashesAndFanOutDirectoriesDoNotSeparateStreams) {
  EXPECT_EQ(tree("0", "9f86d", "0", kHashA).stem, tree("0", "60303", "0", kHashB).stem);
  EXPECT_NE(tree("0", "9f86d", "0", kHashA).sibling, tree("0", "60303", "0", kHashB).sibling);
}

TEST(NameStem, RanksAndGroupsAreStreamsOfTheirOwnAndSiblings) {
  const NameStem zero = tree("0", "9f86d", "0", kHashA);
  const NameStem one = tree("1", "9f86d", "0", kHashA);
  const NameStem group = tree("0", "9f86d", "1", kHashA);
  EXPECT_NE(zero.stem, one.stem);
  EXPECT_NE(zero.stem, group.stem);
  EXPECT_EQ(zero.sibling, one.sibling);
  EXPECT_EQ(zero.sibling, group.sibling);
  EXPECT_NE(zero.sibling, 0u);
}

TEST(NameStem, RanksInsideTheFileName) {
  const auto name = [](const std::string& rank, const std::string& hash) {
    return file_stem(kRootStem, "Qwen%2FQwen3-8B@2@" + rank + "@" + hash + "@bfloat16.kvcache.safetensors");
  };
  EXPECT_EQ(name("0", kHashA).stem, name("0", kHashB).stem);
  EXPECT_NE(name("0", kHashA).stem, name("1", kHashA).stem);
  EXPECT_EQ(name("0", kHashA).sibling, name("1", kHashA).sibling);
  const auto hexadecimal = [](const std::string& rank) {
    return file_stem(kRootStem, "m@0x" + rank + "@0@" + kHashA + ".data");
  };
  EXPECT_NE(hexadecimal("0").stem, hexadecimal("1").stem);
  EXPECT_EQ(hexadecimal("0").sibling, hexadecimal("1").sibling);
  EXPECT_EQ(file_stem(kRootStem, kHashA + "_m_0_2_k").sibling, file_stem(kRootStem, kHashA + "_m_0_2_v").sibling);
}

TEST(NameStem, SuffixesSeparate) {
  EXPECT_NE(file_stem(kRootStem, kHashA + ".pt").stem, file_stem(kRootStem, kHashA + ".pt.metadata").stem);
}

TEST(NameStem, RandomTemporaryNamesOfOneListAreOneKind) {
  const auto name = [](const std::string& hash, const char* temporary) {
    return file_stem(kRootStem, "model@2@0@" + hash + "@bfloat16.kvcache.safetensors" + temporary).stem;
  };
  EXPECT_EQ(name(kHashA, ".tmp1a2b3c4d"), name(kHashB, ".tmp99887766"));
  EXPECT_NE(name(kHashA, ".tmp1a2b3c4d"), name(kHashA, ".metadata.tmp1a2b3c4d"));
  EXPECT_NE(name(kHashA, ".tmp1a2b3c4d"), name(kHashA, ""));
  EXPECT_EQ(file_stem(kRootStem, "chunk1.tmp1a2b3c4d").stem, file_stem(kRootStem, "chunk2.tmp99887766").stem);
}

TEST(NameStem, UuidsAreOneHash) {
  EXPECT_EQ(file_stem(kRootStem, "x.tmp.f81d4fae-7dec-11d0-a765-00a0c91e6bf6").stem,
            file_stem(kRootStem, "x.tmp.0011aabb-1111-2222-3333-444455556666").stem);
}

TEST(NameStem, UnknownNamesAreOpaque) {
  EXPECT_EQ(file_stem(kRootStem, "first thing.bin"), file_stem(kRootStem, "another-7.bin"));
  EXPECT_EQ(file_stem(kRootStem, "first thing.bin").sibling, 0u);
  EXPECT_NE(file_stem(kRootStem, "a.bin").stem, file_stem(directory_stem(kRootStem, "models"), "a.bin").stem);
  EXPECT_EQ(file_stem(kRootStem, "").sibling, 0u);  // no name at all is a name
}

TEST(ChainKey, DependsOnDirectoryAndName) {
  EXPECT_EQ(chain_key(ObjectId{5}, "abc"), chain_key(ObjectId{5}, "abc"));
  EXPECT_NE(chain_key(ObjectId{5}, "abc"), chain_key(ObjectId{6}, "abc"));
  EXPECT_NE(chain_key(ObjectId{5}, "abcdefgh1"), chain_key(ObjectId{5}, "abcdefgh2"));
}

TEST(StreamTable, ThreadAndStemMakeAStreamAndHandlesKeepIt) {
  StreamTable table(8, 2);
  const StreamId a = table.of(1, 10);
  EXPECT_EQ(a, table.of(1, 10));
  EXPECT_NE(a, table.of(2, 10));
  EXPECT_NE(a, table.of(1, 11));
  EXPECT_EQ(table.stem(a), 10u);
  table.bind_handle(99, a);
  EXPECT_EQ(table.of_handle(99), a);
  table.unbind_handle(99);
  EXPECT_FALSE(table.of_handle(99).valid());
}

TEST(StreamTable, ForgetsTheStreamNotSeenForLongest) {
  StreamTable table(3, 10);
  const StreamId a = table.of(1, 1);
  const StreamId b = table.of(2, 1);
  table.of(3, 1);
  table.bind_handle(7, b);
  table.of(1, 1);  // a is newer than b now
  const StreamId d = table.of(4, 1);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_TRUE(table.live(a));
  EXPECT_FALSE(table.live(b));
  EXPECT_EQ(d.slot, b.slot);
  EXPECT_FALSE(table.of_handle(7).valid());
  EXPECT_NE(table.of(2, 1), b);
}

TEST(StreamTable, HandlesAreBounded) {
  StreamTable table(4, 3);
  const StreamId a = table.of(1, 1);
  size_t known = 0;
  for (uint64_t handle = 1; handle <= 10; ++handle) table.bind_handle(handle, a);
  for (uint64_t handle = 1; handle <= 10; ++handle) known += table.of_handle(handle).valid();
  EXPECT_EQ(known, 3u);
}

TEST(BurstClock, EndsAtAPauseMuchLongerThanTheOthers) {
  BurstClock clock;
  EXPECT_FALSE(clock.tick(0, 100, 1000, 100000));
  EXPECT_TRUE(clock.tick(50, 100, 1000, 100000));
  EXPECT_TRUE(clock.tick(100, 100, 1000, 100000));
  EXPECT_FALSE(clock.tick(900, 100, 1000, 100000));  // 16 mean gaps
  EXPECT_TRUE(clock.tick(1800, 100, 1000, 100000));  // a new burst, its first gap may be long
}

TEST(Cohorts, ThreadsThatStartTogetherAreOne) {
  CohortTracker cohorts(5'000, 1'000'000);
  const uint64_t a = cohorts.cohort(1, 100, 0);
  EXPECT_EQ(cohorts.cohort(1, 101, 1'000), a);
  EXPECT_EQ(cohorts.cohort(1, 102, 5'000), a);
  EXPECT_NE(cohorts.cohort(2, 103, 5'000), a);
  const uint64_t late = cohorts.cohort(1, 104, 50'000);
  EXPECT_NE(late, a);
  EXPECT_EQ(cohorts.cohort(1, 100, 60'000), a);  // still active
  EXPECT_NE(cohorts.cohort(1, 101, 5'000'000), a);
}

TEST(Cohorts, Bounded) {
  CohortTracker cohorts(5, 1000, 16);
  for (uint64_t member = 0; member < 1000; ++member) cohorts.cohort(member % 7, member, static_cast<int64_t>(member));
  const uint64_t first = cohorts.cohort(1, 5000, 2000);
  EXPECT_EQ(cohorts.cohort(1, 5000, 2001), first);
}

}  // namespace stream_test
}  // namespace kvcachefs
