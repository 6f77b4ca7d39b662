#include "store/readahead/read_ahead_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace kvcachefs {
namespace read_ahead_queue_test {

constexpr uint64_t kChunk = 256 * kKiB;
constexpr uint64_t kLimit = 16 * kMiB;

PlannedLoad load(uint64_t id, uint32_t run, bool guess = false, uint64_t bytes = kChunk) {
  return {ObjectId{id}, 0, LoadReason::kSuccessor, run, bytes, guess};
}

void push(ReadAheadQueue& queue, uint64_t first, uint64_t last, uint32_t run, bool guess = false) {
  for (uint64_t id = first; id < last; ++id) queue.push(load(id, run, guess));
}

// The ids of the next so many.
std::vector<uint64_t> take(ReadAheadQueue& queue, size_t count) {
  std::vector<uint64_t> ids;
  while (ids.size() < count) {
    auto item = queue.next(0, kLimit);
    if (!item) break;
    ids.push_back(item->load.id.value);
  }
  return ids;
}

using Ids = std::vector<uint64_t>;

TEST(ReadAheadQueue, OneChainComesAsItWasPlanned) {
  ReadAheadQueue queue;
  EXPECT_FALSE(queue.next(0, kLimit));
  push(queue, 1, 7, 5);
  EXPECT_EQ(queue.size(), 6u);
  EXPECT_EQ(queue.bytes(), 6 * kChunk);
  EXPECT_EQ(take(queue, 9), (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(ReadAheadQueue, ChainsTakeTurnsOfOneReadEach) {
  ReadAheadQueue queue;
  for (uint64_t i = 0; i < 6; ++i) {  // planned alternately
    push(queue, 10 + i, 11 + i, 1);
    push(queue, 20 + i, 21 + i, 2);
  }
  EXPECT_EQ(take(queue, 12), (Ids{10, 11, 12, 13, 20, 21, 22, 23, 14, 15, 24, 25}));
}

TEST(ReadAheadQueue, ABodyLargerThanAReadIsATurnByItself) {
  ReadAheadQueue queue;
  queue.push(load(10, 1, false, 9 * kMiB));
  queue.push(load(11, 1, false, 9 * kMiB));
  queue.push(load(20, 2, false, 9 * kMiB));
  EXPECT_EQ(take(queue, 3), (Ids{10, 20, 11}));
}

TEST(ReadAheadQueue, GuessesComeAfterWhatHasAReader) {
  ReadAheadQueue queue;
  push(queue, 10, 12, 1, /*guess=*/true);
  push(queue, 20, 26, 2);
  EXPECT_EQ(take(queue, 7), (Ids{20, 21, 22, 23, 24, 25, 10}));
  push(queue, 20, 22, 2);
  EXPECT_EQ(take(queue, 3), (Ids{20, 21, 11}));
}

TEST(ReadAheadQueue, AGuessThatGotAReaderIsNoneAnyMore) {
  ReadAheadQueue queue;
  push(queue, 10, 12, 1, true);
  push(queue, 20, 22, 2, true);
  queue.push(load(22, 2));
  EXPECT_EQ(take(queue, 5), (Ids{20, 21, 22, 10, 11}));
}

TEST(ReadAheadQueue, NothingIsGivenWithoutRoomForAWholeRead) {
  ReadAheadQueue queue;
  push(queue, 1, 4, 1);
  EXPECT_FALSE(queue.next(kLimit - kMiB + 1, kLimit));
  EXPECT_TRUE(queue.next(kLimit - kMiB, kLimit));
  EXPECT_TRUE(queue.next(0, kMiB / 2));  // nothing is under way: no limit is too small
  EXPECT_FALSE(queue.next(1, kMiB / 2));
}

TEST(ReadAheadQueue, WhatSomebodyWaitsForNeedsNoRoomAndBringsItsNeighbours) {
  ReadAheadQueue queue;
  push(queue, 10, 20, 1);
  push(queue, 20, 30, 2);
  push(queue, 30, 40, 3, true);
  EXPECT_FALSE(queue.promote(ObjectId{99}));
  EXPECT_TRUE(queue.promote(ObjectId{32}));
  EXPECT_TRUE(queue.promote(ObjectId{33}));  // as it is already
  for (uint64_t id : {32, 33, 34, 35}) {
    auto item = queue.next(kLimit, kLimit);
    ASSERT_TRUE(item);
    EXPECT_TRUE(item->awaited);
    EXPECT_EQ(item->load.id.value, id);
  }
  EXPECT_FALSE(queue.next(kLimit, kLimit));
  // The rest of its chain is next, where there is room: somebody reads it now.
  EXPECT_EQ(take(queue, 6), (Ids{30, 31, 36, 37, 10, 11}));
}

TEST(ReadAheadQueue, ALargeBodyIsPromotedAlone) {
  ReadAheadQueue queue;
  queue.push(load(1, 1, false, 9 * kMiB));
  queue.push(load(2, 1, false, kChunk));
  EXPECT_TRUE(queue.promote(ObjectId{1}));
  EXPECT_TRUE(queue.next(kLimit, kLimit));
  EXPECT_FALSE(queue.next(kLimit, kLimit));
  EXPECT_TRUE(queue.promote(ObjectId{2}));  // the last of its chain
  EXPECT_TRUE(queue.next(kLimit, kLimit));
  EXPECT_TRUE(queue.empty());
}

TEST(ReadAheadQueue, WhatIsPutBackIsNext) {
  ReadAheadQueue queue;
  push(queue, 10, 12, 1);
  push(queue, 20, 22, 2);
  auto item = queue.next(0, kLimit);
  queue.put_back(*item);
  EXPECT_EQ(queue.size(), 4u);
  EXPECT_EQ(take(queue, 2), (Ids{10, 11}));  // the last of its chain
  item = queue.next(0, kLimit);
  queue.put_back(*item);
  EXPECT_TRUE(queue.promote(ObjectId{20}));
  item = queue.next(kLimit, kLimit);
  queue.put_back(*item);
  EXPECT_EQ(queue.next(kLimit, kLimit)->load.id, ObjectId{20});
}

TEST(ReadAheadQueue, WhatIsRemovedDoesNotCome) {
  ReadAheadQueue queue;
  push(queue, 10, 14, 1);
  push(queue, 20, 21, 2);
  EXPECT_TRUE(queue.promote(ObjectId{12}));
  EXPECT_TRUE(queue.remove(ObjectId{12}));
  EXPECT_TRUE(queue.remove(ObjectId{10}));
  EXPECT_TRUE(queue.remove(ObjectId{20}));
  EXPECT_FALSE(queue.remove(ObjectId{20}));
  EXPECT_EQ(take(queue, 9), (Ids{13, 11}));
  EXPECT_EQ(queue.bytes(), 0u);
}

// Each load comes out once; what is not awaited is the first of its chain.
TEST(ReadAheadQueue, AnyCallsInAnyOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    ReadAheadQueue queue;
    std::map<uint64_t, PlannedLoad> queued;
    uint64_t next_id = 1;
    for (int step = 0; step < 5000; ++step) {
      const uint64_t id = next_id - std::min(next_id - 1, random() % 100);
      switch (random() % 6) {
        case 0: case 1:
          queued[next_id] = load(next_id, static_cast<uint32_t>(random() % 8), random() % 3 == 0, random() % (2 * kMiB));
          queue.push(queued[next_id++]);
          break;
        case 2: ASSERT_EQ(queue.promote(ObjectId{id}), queued.contains(id)); break;
        case 3: ASSERT_EQ(queue.remove(ObjectId{id}), queued.erase(id) > 0); break;
        default: {
          auto item = queue.next(random() % 2 == 0 ? 0 : kLimit, kLimit);
          if (!item) break;
          ASSERT_TRUE(queued.contains(item->load.id.value));
          for (auto before = queued.begin(); before->first < item->load.id.value && !item->awaited; ++before)
            ASSERT_NE(before->second.run, item->load.run);
          if (random() % 4 == 0)
            queue.put_back(*item);
          else
            queued.erase(item->load.id.value);
        }
      }
      uint64_t bytes = 0;
      for (const auto& [each, planned] : queued) bytes += planned.bytes;
      ASSERT_EQ(queue.size(), queued.size());
      ASSERT_EQ(queue.bytes(), bytes);
    }
    while (auto item = queue.next(0, kLimit)) ASSERT_EQ(queued.erase(item->load.id.value), 1u);
    EXPECT_TRUE(queued.empty());
  }
}

}  // namespace read_ahead_queue_test
}  // namespace kvcachefs
