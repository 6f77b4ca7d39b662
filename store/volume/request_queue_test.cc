#include "store/volume/request_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs {
namespace {

QueuedRequest make(bool urgent, uint64_t tag) {
  QueuedRequest queued;
  queued.request.urgent = urgent;
  queued.request.offset = tag;
  return queued;
}

TEST(RequestQueue, UrgentGoesFirst) {
  RequestQueue queue(8);
  queue.push(make(false, 1));
  queue.push(make(true, 2));
  queue.push(make(true, 3));
  EXPECT_EQ(queue.next()->request.offset, 2u);
  EXPECT_EQ(queue.next()->request.offset, 3u);
  EXPECT_EQ(queue.next()->request.offset, 1u);
  EXPECT_FALSE(queue.next().has_value());
  EXPECT_TRUE(queue.empty());
}

TEST(RequestQueue, BackgroundWaitsWhileManyUrgentAreInFlight) {
  RequestQueue queue(8);
  for (unsigned i = 0; i < RequestQueue::kFewUrgent + 1; ++i) {
    queue.push(make(true, i));
    ASSERT_TRUE(queue.next().has_value());
  }
  queue.push(make(false, 99));
  EXPECT_FALSE(queue.next().has_value());
  EXPECT_FALSE(queue.empty());
  queue.finished(true);
  EXPECT_EQ(queue.next()->request.offset, 99u);
}

TEST(RequestQueue, BackgroundLeavesRoom) {
  RequestQueue queue(2);
  for (uint64_t i = 0; i < 3; ++i) queue.push(make(false, i));
  EXPECT_TRUE(queue.next().has_value());
  EXPECT_TRUE(queue.next().has_value());
  EXPECT_FALSE(queue.next().has_value());
  queue.finished(false);
  EXPECT_TRUE(queue.next().has_value());
}

TEST(RequestQueue, DemandNeverStopsTheBackground) {
  RequestQueue queue(2);
  queue.push(make(false, 7));
  for (uint64_t i = 0; i < 100; ++i) queue.push(make(true, 1000));
  unsigned started = 0;
  while (queue.next()->request.offset != 7) ++started;
  EXPECT_EQ(started, RequestQueue::kUrgentPerBackground);
  queue.push(make(false, 8));  // one is in flight already: this one waits for room
  for (uint64_t i = 0; i < 100 - RequestQueue::kUrgentPerBackground; ++i)
    EXPECT_EQ(queue.next()->request.offset, 1000u);
  EXPECT_FALSE(queue.next().has_value());
}

TEST(RequestCounter, WaitsOnlyForEarlierOnes) {
  RequestCounter counter;
  counter.wait();  // none: returns at once
  const uint64_t early = counter.begin(2);
  std::thread waiter([&] { counter.wait(); });
  // A later generation begins once the waiter has taken its place.
  uint64_t late = counter.begin(1);
  uint64_t same = late == early ? 1 : 0;
  while (late == early) {
    std::this_thread::yield();
    late = counter.begin(1);
    if (late == early) ++same;
  }
  counter.end(early);
  counter.end(early);
  for (uint64_t i = 0; i < same; ++i) counter.end(early);
  waiter.join();  // though `late` is still under way
  counter.end(late);
  counter.wait_for_all();
}

}  // namespace
}  // namespace kvcachefs
