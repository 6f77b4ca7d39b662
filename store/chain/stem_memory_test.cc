#include "store/chain/stem_memory.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace stem_memory_test {

NameStem stem(uint64_t n) { return {n, n + 1}; }

TEST(StemMemory, WhatIsUsedStaysAndTheRestGoes) {
  StemMemory memory(100);
  memory.remember(ObjectId{1}, stem(1));
  for (uint64_t n = 2; n < 2000; ++n) {
    memory.remember(ObjectId{n}, stem(n));
    ASSERT_EQ(memory.find(ObjectId{n}), stem(n));
    ASSERT_LE(memory.size(), 100u);
    if (n % 10 == 0) {
      ASSERT_EQ(memory.find(ObjectId{1}), stem(1)) << "after " << n;
    }
  }
  EXPECT_FALSE(memory.find(ObjectId{2}));
  EXPECT_TRUE(memory.find(ObjectId{1980})) << "they do not go all at once";
}

TEST(StemMemory, TheLastStemOfAnObjectCounts) {
  StemMemory memory(4);
  memory.remember(ObjectId{1}, stem(1));
  memory.remember(ObjectId{2}, stem(2));
  memory.remember(ObjectId{3}, stem(3));  // 1 and 2 are the older ones now
  memory.remember(ObjectId{1}, stem(7));
  EXPECT_EQ(memory.find(ObjectId{1}), stem(7));
  memory.erase(ObjectId{1});
  memory.erase(ObjectId{2});
  EXPECT_FALSE(memory.find(ObjectId{1}));
  EXPECT_FALSE(memory.find(ObjectId{2}));
}

}  // namespace stem_memory_test
}  // namespace kvcachefs
