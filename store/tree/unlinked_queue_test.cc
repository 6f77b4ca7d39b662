#include "store/tree/unlinked_queue.h"

#include <map>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace unlinked_queue_test {

TEST(UnlinkedQueue, ALookTakesNoMoreStepsThanItMayHoweverManyWait) {
  UnlinkedQueue queue;
  for (uint64_t i = 1; i <= 1000; ++i) queue.add(ObjectId{i});
  size_t steps = 0;
  queue.look_at(64, [&](ObjectId) {
    ++steps;
    return false;
  });
  EXPECT_EQ(steps, 64u);
  EXPECT_EQ(queue.size(), 1000u);
}

TEST(UnlinkedQueue, EachIsLookedAtInItsTurn) {
  UnlinkedQueue queue;
  std::map<uint64_t, int> looks;
  for (uint64_t i = 1; i <= 1000; ++i) queue.add(ObjectId{i});
  for (int round = 0; round < 10; ++round)
    queue.look_at(100, [&](ObjectId id) {
      ++looks[id.value];
      return id.value % 2 == 0;
    });
  EXPECT_EQ(looks.size(), 1000u);
  for (const auto& [id, times] : looks) EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(queue.size(), 500u);
  queue.look_at(SIZE_MAX, [](ObjectId id) { return id.value % 2 == 1; });
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace unlinked_queue_test
}  // namespace kvcachefs
