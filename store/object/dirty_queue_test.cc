#include "store/object/dirty_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs {
namespace dirty_queue_test {

ObjectPtr object(uint64_t number) { return std::make_shared<Object>(ObjectId{number}, Attributes{}); }

TEST(DirtyQueue, TheLaneTakesAllAndPutsBackWhatIsNotDone) {
  DirtyQueue queue;
  queue.add_content(object(1));
  queue.add_content(object(2));
  DirtyQueue::Objects taken = queue.take_content();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_TRUE(queue.content().empty());
  queue.add_content(object(3));
  taken.pop_back();
  queue.put_back_content(std::move(taken));
  ASSERT_EQ(queue.content().size(), 2u);
  EXPECT_EQ(queue.content()[1]->id, ObjectId{1});
}

TEST(DirtyQueue, AttributesGoByThemselves) {
  DirtyQueue queue;
  EXPECT_FALSE(queue.has_attributes());
  queue.add_attributes(object(1));
  queue.add_attributes(object(2));
  queue.add_attributes(object(1));  // as often as they change
  EXPECT_TRUE(queue.has_attributes());
  EXPECT_EQ(queue.take_attributes().size(), 3u);
  EXPECT_FALSE(queue.has_attributes());
}

TEST(DirtyQueue, AWakeUpWhileTheLaneWorksIsForItsNextRound) {
  DirtyQueue queue;
  queue.wake();
  ASSERT_TRUE(queue.wait_for_work());
  queue.begin_round();
  queue.wake(/*hurry=*/true);  // during the round
  ASSERT_TRUE(queue.wait_for_work());
  ASSERT_TRUE(queue.wait_out(std::chrono::hours(1)));  // returns at once
}

TEST(DirtyQueue, StopEndsBothWaits) {
  DirtyQueue queue;
  std::thread lane([&] {
    EXPECT_FALSE(queue.wait_for_work());
    EXPECT_FALSE(queue.wait_out(std::chrono::hours(1)));
  });
  queue.stop();
  lane.join();
}

TEST(DirtyQueue, EveryAdditionOfSeveralThreadsIsTaken) {
  DirtyQueue queue;
  constexpr int kEach = 2000;
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i)
    writers.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        queue.add_content(object(1));
        queue.wake();
      }
    });
  size_t taken = 0;
  while (taken < 3 * kEach) {
    ASSERT_TRUE(queue.wait_for_work());
    queue.begin_round();
    taken += queue.take_content().size();
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(taken, 3u * kEach);
}

}  // namespace dirty_queue_test
}  // namespace kvcachefs
