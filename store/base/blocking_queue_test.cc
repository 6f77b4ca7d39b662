#include "store/base/blocking_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs {
namespace blocking_queue_test {

TEST(BlockingQueue, TakesAllInOrder) {
  BlockingQueue<int> queue;
  EXPECT_TRUE(queue.take().empty());
  queue.add(1);
  queue.add(2);
  EXPECT_EQ(queue.take(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(queue.take().empty());
}

TEST(BlockingQueue, AStoppedQueueIsEmptiedFirst) {
  BlockingQueue<int> queue;
  queue.add(1);
  queue.stop();
  EXPECT_TRUE(queue.wait());
  EXPECT_EQ(queue.take().size(), 1u);
  EXPECT_FALSE(queue.wait());
  queue.add(2);  // for the owner, once its thread has ended
  EXPECT_EQ(queue.take(), std::vector<int>{2});
}

TEST(BlockingQueue, EveryItemOfSeveralThreadsIsTakenOnce) {
  BlockingQueue<int> queue;
  constexpr size_t kEach = 2000;
  std::vector<std::thread> adding;
  for (int i = 0; i < 3; ++i)
    adding.emplace_back([&] {
      for (size_t k = 0; k < kEach; ++k) queue.add(0);
    });
  size_t taken = 0;
  std::thread taking([&] {
    while (queue.wait()) taken += queue.take().size();
  });
  for (std::thread& each : adding) each.join();
  queue.stop();
  taking.join();
  EXPECT_EQ(taken, 3 * kEach);
}

}  // namespace blocking_queue_test
}  // namespace kvcachefs
