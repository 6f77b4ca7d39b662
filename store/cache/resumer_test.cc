#include "store/cache/resumer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace kvcachefs {
namespace resumer_test {

TEST(Resumer, WithoutItsThreadAnswersComeAtOnce) {
  Resumer resumer({system_clock(), [] {}});
  bool answered = false;
  resumer.answer_later([&] { answered = true; });
  EXPECT_TRUE(answered);
}

TEST(Resumer, GivesAnswersAndTriesARequestUntilItsMemoryIsThere) {
  std::atomic<int> hurried{0};
  Resumer resumer({system_clock(), [&] { ++hurried; }});
  resumer.waiters().set_rules({.has_room_without_reads = [](uint64_t) { return false; }, .nothing_moves = [] { return false; }, .no_use = [] { return std::nullopt; }});
  resumer.start();
  std::promise<std::thread::id> answered;
  resumer.answer_later([&] { answered.set_value(std::this_thread::get_id()); });
  EXPECT_NE(answered.get_future().get(), std::this_thread::get_id());

  std::atomic<int> tries{0};
  std::atomic<bool> memory{false};
  std::promise<void> gone_on;
  resumer.wait(MemoryWaiters::Kind::kReader, ObjectId{1}, 4096, [&](MemoryWaiters::Try&) {
    ++tries;
    if (!memory) return false;
    gone_on.set_value();
    return true;
  }, [](const Error& why) { ADD_FAILURE() << why.message; });
  while (tries < 3) std::this_thread::yield();  // also without an event: memory may come back unnoticed
  memory = true;
  resumer.memory_came_back();
  gone_on.get_future().get();
  EXPECT_GT(hurried, 0);
  resumer.stop();
  bool late = false;
  resumer.answer_later([&] { late = true; });
  EXPECT_FALSE(late);  // the owner gives answers that arrive after the thread's end
  resumer.give_answers();
  EXPECT_TRUE(late);
}

}  // namespace resumer_test
}  // namespace kvcachefs
