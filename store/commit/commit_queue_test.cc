#include "store/commit/commit_queue.h"

#include <gtest/gtest.h>

#include <thread>

#include "store/commit/unmarked_bodies.h"

namespace kvcachefs {
namespace commit_queue_test {

TEST(CommitQueue, WhatWasTakenIsInWorkUntilItIsSettled) {
  CommitQueue queue;
  EXPECT_TRUE(queue.idle());
  queue.add({});
  queue.add({});
  EXPECT_FALSE(queue.idle());
  EXPECT_EQ(queue.take().size(), 2u);
  EXPECT_TRUE(queue.take().empty());
  EXPECT_FALSE(queue.idle());
  queue.settled(2);
  EXPECT_TRUE(queue.idle());
}

TEST(CommitQueue, AStoppedQueueIsEmptiedFirst) {
  CommitQueue queue;
  queue.add({});
  queue.stop();
  EXPECT_TRUE(queue.wait());
  queue.settled(queue.take().size());
  EXPECT_FALSE(queue.wait());
}

TEST(CommitQueue, EveryRequestOfSeveralThreadsIsTakenOnce) {
  CommitQueue queue;
  constexpr size_t kEach = 2000;
  std::vector<std::thread> lanes;
  for (int i = 0; i < 3; ++i)
    lanes.emplace_back([&] {
      for (size_t k = 0; k < kEach; ++k) queue.add({});
    });
  size_t taken = 0;
  std::thread committer([&] {
    while (queue.wait()) {
      const size_t count = queue.take().size();
      taken += count;
      queue.settled(count);
    }
  });
  for (std::thread& lane : lanes) lane.join();
  queue.stop();
  committer.join();
  EXPECT_EQ(taken, 3 * kEach);
  EXPECT_TRUE(queue.idle());
}

TEST(UnmarkedBodies, AreKnownByTheirExtentUntilAMark) {
  UnmarkedBodies bodies;
  const ExtentId first{1, 1}, second{1, 2};
  bodies.add(first, ObjectId{1});
  bodies.add(first, ObjectId{2});
  bodies.add(second, ObjectId{3});
  EXPECT_EQ(bodies.in(first), (std::vector<ObjectId>{ObjectId{1}, ObjectId{2}}));
  bodies.set(first, {ObjectId{2}});
  EXPECT_EQ(bodies.in(first), std::vector<ObjectId>{ObjectId{2}});
  bodies.set(first, {});
  EXPECT_TRUE(bodies.in(first).empty());
  bodies.clear();
  EXPECT_TRUE(bodies.in(second).empty());
}

}  // namespace commit_queue_test
}  // namespace kvcachefs
