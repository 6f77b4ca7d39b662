#include "store/volume/request_queue.h"

#include <gtest/gtest.h>

#include <span>
#include <thread>
#include <vector>

namespace kvcachefs {
namespace request_queue_test {

constexpr RequestQueue::Clock::time_point kNow{std::chrono::hours(1)};

QueuedRequest make(bool urgent, uint64_t tag) {
  QueuedRequest queued;
  queued.request.urgent = urgent;
  queued.request.offset = tag;
  return queued;
}

TEST(RequestQueue, UrgentGoesFirst) {
  RequestQueue queue(8, kNoByteLimit);
  queue.push(make(false, 1));
  queue.push(make(true, 2));
  queue.push(make(true, 3));
  EXPECT_EQ(queue.next(kNow, false)->request.offset, 2u);
  EXPECT_EQ(queue.next(kNow, false)->request.offset, 3u);
  EXPECT_EQ(queue.next(kNow, false)->request.offset, 1u);
  EXPECT_FALSE(queue.next(kNow, false).has_value());
  EXPECT_TRUE(queue.empty());
}

TEST(RequestQueue, BackgroundWaitsWhileManyUrgentAreInFlight) {
  RequestQueue queue(8, kNoByteLimit);
  for (unsigned i = 0; i < RequestQueue::kFewUrgent + 1; ++i) {
    queue.push(make(true, i));
    ASSERT_TRUE(queue.next(kNow, false).has_value());
  }
  queue.push(make(false, 99));
  EXPECT_FALSE(queue.next(kNow, false).has_value());
  EXPECT_FALSE(queue.empty());
  queue.finished(make(true, 0).request);
  EXPECT_EQ(queue.next(kNow, false)->request.offset, 99u);
}

TEST(RequestQueue, BackgroundLeavesRoom) {
  RequestQueue queue(2, kNoByteLimit);
  for (uint64_t i = 0; i < 3; ++i) queue.push(make(false, i));
  EXPECT_TRUE(queue.next(kNow, false).has_value());
  EXPECT_TRUE(queue.next(kNow, false).has_value());
  EXPECT_FALSE(queue.next(kNow, false).has_value());
  queue.finished(make(false, 0).request);
  EXPECT_TRUE(queue.next(kNow, false).has_value());
}

TEST(RequestQueue, DemandNeverStopsTheBackground) {
  RequestQueue queue(2, kNoByteLimit);
  queue.push(make(false, 7));
  for (uint64_t i = 0; i < 100; ++i) queue.push(make(true, 1000));
  unsigned started = 0;
  while (queue.next(kNow, false)->request.offset != 7) ++started;
  EXPECT_EQ(started, RequestQueue::kUrgentPerBackground);
  queue.push(make(false, 8));  // one is in flight already: this one waits for room
  for (uint64_t i = 0; i < 100 - RequestQueue::kUrgentPerBackground; ++i)
    EXPECT_EQ(queue.next(kNow, false)->request.offset, 1000u);
  EXPECT_FALSE(queue.next(kNow, false).has_value());
}

class BackgroundReads : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 100;

  QueuedRequest read(uint64_t tag, size_t bytes) {
    QueuedRequest queued = make(false, tag);
    // Two pieces: their sum counts.
    queued.request.pieces = {std::span(memory_).first(bytes / 2), std::span(memory_).first(bytes - bytes / 2)};
    return queued;
  }
  QueuedRequest write(uint64_t tag, size_t bytes) {
    QueuedRequest queued = read(tag, bytes);
    queued.request.kind = IoRequest::Kind::kWrite;
    return queued;
  }
  // The tag of the next request to start; 0 if none may.
  uint64_t start() {
    auto started = queue_.next(kNow, false);
    return started ? started->request.offset : 0;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  RequestQueue queue_{8, kBytes};
};

TEST_F(BackgroundReads, AreHeldBackBeyondTheirBytes) {
  queue_.push(read(1, 60));
  queue_.push(read(2, 40));
  queue_.push(read(3, 1));
  EXPECT_EQ(start(), 1u);
  EXPECT_EQ(start(), 2u);
  EXPECT_EQ(start(), 0u);
  queue_.finished(read(2, 40).request);
  EXPECT_EQ(start(), 3u);
}

TEST_F(BackgroundReads, OneLargerThanTheLimitGoesAlone) {
  queue_.push(read(1, 10));
  queue_.push(read(2, 500));
  EXPECT_EQ(start(), 1u);
  EXPECT_EQ(start(), 0u);
  queue_.finished(read(1, 10).request);
  EXPECT_EQ(start(), 2u);
}

TEST_F(BackgroundReads, HoldUpNeitherWritesNorDemand) {
  queue_.push(read(1, 100));
  queue_.push(read(2, 100));
  EXPECT_EQ(start(), 1u);
  queue_.push(write(3, 900));
  EXPECT_EQ(start(), 3u);
  QueuedRequest demand = read(4, 900);
  demand.request.urgent = true;
  queue_.push(std::move(demand));
  EXPECT_EQ(start(), 4u);
  EXPECT_EQ(start(), 0u);
}

TEST_F(BackgroundReads, TakeTurnsWithWrites) {
  for (uint64_t tag = 1; tag <= 3; ++tag) queue_.push(read(tag, 10));
  for (uint64_t tag = 11; tag <= 13; ++tag) queue_.push(write(tag, 10));
  for (const uint64_t expected : {1u, 11u, 2u, 12u, 3u, 13u}) EXPECT_EQ(start(), expected);
}

class WritesBesideReads : public BackgroundReads {
 protected:
  static constexpr size_t kWrite = RequestQueue::kWriteBytesBesideReads / 2;
  static constexpr auto kSoon = RequestQueue::kStillReads / 2, kLate = 2 * RequestQueue::kStillReads;

  WritesBesideReads() { memory_.resize(3 * kWrite); }
  void push_writes(uint64_t count) {
    for (uint64_t tag = 11; tag < 11 + count; ++tag) queue_.push(write(tag, kWrite));
  }
  // How many may start.
  unsigned started(RequestQueue::Clock::time_point now, bool others_read = false) {
    unsigned count = 0;
    while (queue_.next(now, others_read)) ++count;
    return count;
  }
};

TEST_F(WritesBesideReads, AreFew) {
  queue_.push(read(1, 10));
  push_writes(5);
  EXPECT_EQ(started(kNow), 1u + 2u);
  queue_.finished(write(11, kWrite).request);
  EXPECT_EQ(started(kNow + kSoon), 1u) << "one more for each that ended";
}

TEST_F(WritesBesideReads, AreFewForAMomentAfterThem) {
  queue_.push(read(1, 10));
  EXPECT_EQ(started(kNow), 1u);
  queue_.finished(read(1, 10).request);
  push_writes(5);
  EXPECT_EQ(started(kNow + kSoon), 2u);
  EXPECT_EQ(started(kNow + kSoon + kLate), 3u) << "nobody came back: all of them";
}

TEST_F(WritesBesideReads, AreFewForAMomentAfterOneThatTookLong) {
  queue_.push(read(1, 10));
  push_writes(5);
  EXPECT_EQ(started(kNow), 1u + 2u);
  queue_.finished(read(1, 10).request);
  queue_.finished(write(11, kWrite).request);
  EXPECT_EQ(started(kNow + 2 * kLate), 1u);
}

TEST_F(WritesBesideReads, AreFewBesideDemand) {
  QueuedRequest demand = read(1, 10);
  demand.request.urgent = true;
  queue_.push(std::move(demand));
  push_writes(5);
  EXPECT_EQ(started(kNow), 1u + 2u);
}

TEST_F(WritesBesideReads, AreFewWhereOthersRead) {
  push_writes(5);
  EXPECT_EQ(started(kNow, true), 2u);
  EXPECT_EQ(started(kNow + kLate, true), 0u);
  EXPECT_EQ(started(kNow + kLate), 3u);
}

TEST_F(WritesBesideReads, OneGoesHoweverLarge) {
  queue_.push(read(1, 10));
  queue_.push(write(11, 3 * kWrite));
  EXPECT_EQ(started(kNow), 2u);
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

}  // namespace request_queue_test
}  // namespace kvcachefs
