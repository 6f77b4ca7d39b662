#include "fs/opener_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace kvcachefs {
namespace {

TEST(OpenerThreads, DoWhatTheyAreGivenBesideEachOther) {
  OpenerThreads threads;
  std::latch all_there(OpenerThreads::kMostThreads);
  std::atomic<int> done{0};
  for (size_t i = 0; i < OpenerThreads::kMostThreads; ++i)
    threads.run([&] {
      all_there.arrive_and_wait();
      ++done;
    });
  threads.stop();
  EXPECT_EQ(done, static_cast<int>(OpenerThreads::kMostThreads));
}

TEST(OpenerThreads, WhatIsQueuedIsDoneBeforeTheyEnd) {
  OpenerThreads threads;
  std::atomic<int> done{0};
  for (int i = 0; i < 1000; ++i) threads.run([&] { ++done; });
  threads.stop();
  EXPECT_EQ(done, 1000);
  threads.run([&] { ++done; });  // inside the call now
  EXPECT_EQ(done, 1001);
  threads.stop();
}

}  // namespace
}  // namespace kvcachefs
