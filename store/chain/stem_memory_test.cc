#include "store/chain/stem_memory.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace stem_memory_test {

NameStem stem(uint64_t n) { return {n, n + 1}; }

TEST(StemMemory, WhatIsUsedStaysAndTheRestGoes) {
  StemMemory memory(128);
  memory.remember(ObjectId{1}, stem(1));
  for (uint64_t n = 2; n < 2000; ++n) {
    memory.remember(ObjectId{n}, stem(n));
    ASSERT_EQ(memory.find(ObjectId{n}), stem(n));
    if (n % 10 == 0) {
      ASSERT_EQ(memory.find(ObjectId{1}), stem(1)) << "after " << n;
    }
  }
  size_t known = 0;
  for (uint64_t n = 2; n < 2000; ++n) known += memory.find(ObjectId{n}) ? 1 : 0;
  EXPECT_LE(known, memory.most());
  EXPECT_GE(known, memory.most() / 2) << "ids in a row share the sets evenly";
  EXPECT_FALSE(memory.find(ObjectId{2}));
  EXPECT_TRUE(memory.find(ObjectId{1999}));
}

TEST(StemMemory, TheLastStemOfAnObjectCounts) {
  StemMemory memory(16);
  memory.remember(ObjectId{1}, stem(1));
  memory.remember(ObjectId{2}, stem(2));
  memory.remember(ObjectId{3}, stem(3));
  memory.remember(ObjectId{1}, stem(7));
  EXPECT_EQ(memory.find(ObjectId{1}), stem(7));
  memory.erase(ObjectId{1});
  memory.erase(ObjectId{2});
  EXPECT_FALSE(memory.find(ObjectId{1}));
  EXPECT_FALSE(memory.find(ObjectId{2}));
  EXPECT_EQ(memory.find(ObjectId{3}), stem(3));
  EXPECT_FALSE(memory.find(ObjectId{}));
}

}  // namespace stem_memory_test
}  // namespace kvcachefs
