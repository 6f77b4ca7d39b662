#include "store/base/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvcachefs {
namespace work_queue_test {

TEST(WorkQueue, RunsInOrderAndLeavesWhatTheWorkAdds) {
  Wakeup wakeup;
  WorkQueue queue(wakeup);
  std::vector<int> ran;
  queue.add([&] {
    ran.push_back(1);
    queue.add([&] { ran.push_back(3); });
  });
  queue.add([&] { ran.push_back(2); });
  EXPECT_TRUE(queue.run());
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_TRUE(queue.run());
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(queue.run());
}

TEST(Wakeup, AWakeUpBeforeTheWaitEndsItAtOnceAndOnce) {
  Wakeup wakeup;
  wakeup.wake();
  wakeup.wake();
  EXPECT_TRUE(wakeup.wait_for(std::chrono::hours(1)));
  EXPECT_FALSE(wakeup.wait_for(std::chrono::milliseconds(1)));  // the flag was taken back
  wakeup.wake();
  wakeup.wait();
}

TEST(WorkQueue, WakesTheThreadThatRunsIt) {
  Wakeup wakeup;
  WorkQueue queue(wakeup);
  constexpr int kItems = 2000;
  std::atomic<int> ran{0};
  std::thread runner([&] {
    while (ran < 2 * kItems) {
      wakeup.wait();
      queue.run();
    }
  });
  std::thread other([&] {
    for (int i = 0; i < kItems; ++i) queue.add([&] { ++ran; });
  });
  for (int i = 0; i < kItems; ++i) queue.add([&] { ++ran; });
  other.join();
  runner.join();
  EXPECT_EQ(ran, 2 * kItems);
}

}  // namespace work_queue_test
}  // namespace kvcachefs
