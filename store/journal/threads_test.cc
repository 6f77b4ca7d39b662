// append() and rotate() beside sync(): for the thread sanitizer; and what sync() covered survives a power cut.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "store/journal/journal.h"
#include "store/journal/test_records.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace threads_test {

TEST(JournalThreads, WhatWasAppendedBeforeASyncSurvivesWhileOthersGoOn) {
  constexpr uint64_t kBatches = 2000;
  auto volume = make_sim_volume();
  ASSERT_TRUE(volume->make_directories("nodes/node-a/3"));
  for (const char* directory : {"", "nodes", "nodes/node-a"}) ASSERT_TRUE(volume->sync_directory(directory));
  auto journal = JournalWriter::create(volume, test_identity(), "boot", 4000);
  ASSERT_TRUE(journal);
  std::atomic<uint64_t> appended{0}, promised{0};
  std::atomic<bool> over{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        const uint64_t before = appended;
        ASSERT_TRUE((*journal)->sync());
        uint64_t known = promised;
        while (known < before && !promised.compare_exchange_weak(known, before)) {
        }
      }
    });
  }
  threads.emplace_back([&] {
    while (!over) {
      ASSERT_TRUE((*journal)->rotate());
      (void)(*journal)->position();
      (void)(*journal)->appended();
      std::this_thread::yield();
    }
  });
  for (uint64_t i = 1; i <= kBatches; ++i) {
    ASSERT_TRUE((*journal)->append({{i}, {chunk_name(i)}}));
    appended = i;
  }
  while (promised == 0) std::this_thread::yield();
  over = true;
  threads.clear();
  ASSERT_TRUE((*journal)->append({{kBatches + 1}, {}}));  // after the last sync: may be lost
  const auto after = volume->cut_power({.seed = 1, .keep_probability = 0, .tear_bytes = 4096});
  uint64_t last = 0;
  const auto statistics =
      replay_journals(*after, test_identity(0), {}, [&](const Batch& batch, JournalPosition, bool) -> Status {
        EXPECT_EQ(batch.stamp.value, last + 1);
        last = batch.stamp.value;
        return {};
      });
  ASSERT_TRUE(statistics) << statistics.error().message;
  EXPECT_GE(last, promised.load());
}

}  // namespace threads_test
}  // namespace kvcachefs
