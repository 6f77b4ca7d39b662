#include "store/base/parallel_runner.h"

#include <atomic>
#include <barrier>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace parallel_runner_test {

TEST(ParallelRunner, CallsEachOnceRunAfterRun) {
  ParallelRunner runner("test", 3);
  for (size_t count : {0u, 1u, 2u, 5u, 100u, 3u}) {
    std::vector<std::atomic<int>> calls(count);
    runner.run(count, [&](size_t index) { calls[index].fetch_add(1); });
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(calls[i].load(), 1) << i << " of " << count;
  }
}

TEST(ParallelRunner, SeveralAtATime) {
  constexpr int kTogether = 3;  // two threads and the caller: fewer would never pass the barrier
  std::barrier together(kTogether);
  ParallelRunner runner("test", kTogether - 1);
  std::atomic<int> passed{0};
  runner.run(kTogether, [&](size_t) {
    together.arrive_and_wait();
    ++passed;
  });
  EXPECT_EQ(passed.load(), kTogether);
}

TEST(ParallelRunner, WithoutThreadsTheCallerDoesItInOrder) {
  ParallelRunner runner("test", 0);
  std::vector<size_t> order;
  std::set<std::thread::id> threads;
  runner.run(5, [&](size_t index) {
    order.push_back(index);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(threads, std::set<std::thread::id>{std::this_thread::get_id()});
}

}  // namespace parallel_runner_test
}  // namespace kvcachefs
