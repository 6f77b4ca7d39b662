#include "store/readahead/kernel_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace kvcachefs {
namespace kernel_ahead_test {

void push(KernelAhead& ahead, uint64_t id, uint64_t size_bytes = 1) { ahead.push({ObjectId{id}, nullptr, size_bytes}); }

bool await(KernelAhead& ahead, uint64_t id, int& called) {
  KernelAhead::Then then = [&called] { ++called; };
  const bool taken = ahead.await(ObjectId{id}, then);
  EXPECT_EQ(taken, !then) << "it is taken, or left to the caller";
  return taken;
}

uint64_t next_id(KernelAhead& ahead) {
  auto work = ahead.next();
  return work ? work->id.value : 0;
}

TEST(KernelAhead, InTheOrderInWhichTheyCame) {
  KernelAhead ahead;
  for (uint64_t id : {3, 1, 2, 1}) push(ahead, id);
  for (uint64_t id : {3, 1, 2}) EXPECT_EQ(next_id(ahead), id);
  push(ahead, 1);  // being read
  push(ahead, 4);
  EXPECT_EQ(next_id(ahead), 4u);
  ahead.finish(ObjectId{1});
  push(ahead, 1);
  EXPECT_EQ(next_id(ahead), 1u);
}

TEST(KernelAhead, WhoOpensOneWaitsUntilItIsThere) {
  KernelAhead ahead;
  int called = 0;
  EXPECT_FALSE(await(ahead, 1, called)) << "nothing is known of it";
  push(ahead, 1);
  ASSERT_EQ(next_id(ahead), 1u);
  EXPECT_FALSE(await(ahead, 2, called));
  EXPECT_TRUE(await(ahead, 1, called));
  EXPECT_TRUE(await(ahead, 1, called));
  EXPECT_EQ(called, 0);
  ahead.finish(ObjectId{1});
  EXPECT_EQ(called, 2);
  EXPECT_FALSE(await(ahead, 1, called)) << "it was read";
}

TEST(KernelAhead, WhatSomebodyWaitsForIsNext) {
  KernelAhead ahead;
  for (uint64_t id : {1, 2, 3, 4}) push(ahead, id);
  int called = 0;
  EXPECT_TRUE(await(ahead, 3, called));
  for (uint64_t id : {3, 1, 2, 4}) EXPECT_EQ(next_id(ahead), id);
}

TEST(KernelAhead, WhoWaitedFirstComesFirst) {
  KernelAhead ahead;
  for (uint64_t id : {1, 2, 3, 4}) push(ahead, id);
  int called = 0;
  for (uint64_t id : {3, 2, 3}) EXPECT_TRUE(await(ahead, id, called));
  for (uint64_t id : {3, 2, 1, 4}) EXPECT_EQ(next_id(ahead), id);
}

TEST(KernelAhead, NobodyWaitsBehindALargeOne) {
  KernelAhead ahead;
  push(ahead, 1, KernelAhead::kMostAwaitedBytes + 1);
  push(ahead, 2);
  push(ahead, 3);
  int called = 0;
  ASSERT_EQ(next_id(ahead), 1u);
  ASSERT_EQ(next_id(ahead), 2u);
  EXPECT_TRUE(await(ahead, 2, called)) << "it is being read";
  EXPECT_FALSE(await(ahead, 3, called)) << "it may wait for long";
  ahead.finish(ObjectId{1});
  EXPECT_TRUE(await(ahead, 3, called));
  ahead.give_up();
}

TEST(KernelAhead, NobodyWaitsForAVolumeThatStalls) {
  KernelAhead ahead;
  push(ahead, 1);
  ASSERT_EQ(next_id(ahead), 1u);
  std::this_thread::sleep_for(KernelAhead::kStalled + std::chrono::milliseconds(50));
  int called = 0;
  EXPECT_FALSE(await(ahead, 1, called));
  push(ahead, 2);
  EXPECT_FALSE(await(ahead, 2, called)) << "queued behind it";
}

TEST(KernelAhead, WhoWaitsWhenTheVolumeComesToStallIsGivenBack) {
  KernelAhead ahead;
  push(ahead, 1);
  push(ahead, 2);
  ASSERT_EQ(next_id(ahead), 1u);
  int called = 0;
  EXPECT_TRUE(await(ahead, 1, called));
  EXPECT_TRUE(await(ahead, 2, called));
  EXPECT_TRUE(ahead.take_stalled().empty());
  std::this_thread::sleep_for(KernelAhead::kStalled + std::chrono::milliseconds(50));
  auto taken = ahead.take_stalled();
  EXPECT_EQ(taken.size(), 2u);
  for (auto& then : taken) then();
  EXPECT_EQ(called, 2);
  ahead.finish(ObjectId{1});
  ahead.give_up();
  EXPECT_EQ(called, 2) << "once each";
}

TEST(KernelAhead, NobodyWaitsBehindManyBytes) {
  KernelAhead ahead;
  constexpr uint64_t kBytes = KernelAhead::kMostAwaitedBytes / 2;
  int called = 0;
  for (uint64_t id = 1; id <= 4; ++id) push(ahead, id, kBytes + 1);
  EXPECT_TRUE(await(ahead, 1, called));
  EXPECT_TRUE(await(ahead, 2, called));
  EXPECT_FALSE(await(ahead, 3, called));
  ahead.give_up();
}

TEST(KernelAhead, NobodyWaitsForALargeOne) {
  KernelAhead ahead;
  push(ahead, 1, KernelAhead::kMostAwaitedBytes + 1);
  push(ahead, 2, KernelAhead::kMostAwaitedBytes);
  int called = 0;
  EXPECT_FALSE(await(ahead, 1, called));
  EXPECT_TRUE(await(ahead, 2, called));
  ahead.give_up();
}

TEST(KernelAhead, WhoWaitsWhenItStopsIsCalledAllTheSame) {
  KernelAhead ahead;
  push(ahead, 1);
  push(ahead, 2);
  ASSERT_EQ(next_id(ahead), 1u);
  int called = 0;
  EXPECT_TRUE(await(ahead, 1, called));
  EXPECT_TRUE(await(ahead, 2, called));
  ahead.stop();
  EXPECT_FALSE(ahead.next());
  EXPECT_FALSE(await(ahead, 2, called)) << "nobody would call him";
  ahead.finish(ObjectId{1});
  EXPECT_EQ(called, 1);
  ahead.give_up();
  EXPECT_EQ(called, 2);
}

TEST(KernelAhead, ManyThreads) {
  constexpr uint64_t kFiles = 2000;
  KernelAhead ahead;
  std::atomic<uint64_t> called = 0, taken = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      while (auto work = ahead.next()) ahead.finish(work->id);
    });
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i)
    clients.emplace_back([&] {
      for (uint64_t id = 1; id <= kFiles; ++id) {
        push(ahead, id);
        KernelAhead::Then then = [&] { called.fetch_add(1); };
        if (ahead.await(ObjectId{id}, then)) taken.fetch_add(1);
      }
    });
  for (std::thread& client : clients) client.join();
  ahead.stop();
  for (std::thread& reader : readers) reader.join();
  ahead.give_up();
  EXPECT_EQ(called, taken);
}

}  // namespace kernel_ahead_test
}  // namespace kvcachefs
