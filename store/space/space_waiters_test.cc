#include "store/space/space_waiters.h"

#include <thread>

#include <gtest/gtest.h>

#include "store/base/running_clock.h"
#include "store/base/units.h"

namespace kvcachefs {
namespace space_waiters_test {

class SpaceWaitersTest : public ::testing::Test {
 protected:
  void SetUp() override { space_.configure(kMiB, 0); }
  // Takes `bytes` of the space, or returns that they do not fit.
  std::move_only_function<Status()> take(uint64_t bytes) {
    return [this, bytes]() -> Status {
      ++attempts_;
      if (space_.try_reserve(bytes)) return {};
      return fail(Code::kNoSpace, "full");
    };
  }
  std::move_only_function<void(Status)> note() {
    return [this](Status status) { answers_.push_back(std::move(status)); };
  }

  Space space_;
  std::atomic<uint64_t> refused_{0};
  std::atomic<int> asked_{0};
  ManualClock clock_{1'000};
  SpaceWaiters waiters_{space_, refused_, clock_, [this] { ++asked_; }};
  int attempts_ = 0;
  std::vector<Status> answers_;
};

TEST_F(SpaceWaitersTest, WhereMoreCanBeMadeCallsWaitThoughNothingWasGivenBack) {
  space_.reserve(kMiB);
  bool more = true;
  waiters_.set_source([&] { return more; });
  waiters_.with_room(take(kMiB), note());
  for (uint64_t number = 0; number < 40; ++number) {  // more often than where only what is dead comes back
    const auto round = waiters_.begin_round();
    ASSERT_TRUE(round);
    EXPECT_EQ(round->pressure, number) << "a call that goes on waiting wants more";
    waiters_.end_round(*round, /*gave_back=*/false);
    EXPECT_TRUE(answers_.empty());
  }
  more = false;
  const auto round = waiters_.begin_round();
  ASSERT_TRUE(round);
  waiters_.end_round(*round, false);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_FALSE(answers_[0]);
}

// As if no record can be written, and each round waits for that and fails.
TEST_F(SpaceWaitersTest, RoundsThatTakeLongAreFewer) {
  space_.reserve(kMiB);
  waiters_.set_source([] { return true; });
  waiters_.with_room(take(kMiB), note());
  for (int rounds = 0; rounds < 3; ++rounds) {
    EXPECT_TRUE(answers_.empty());
    const auto round = waiters_.begin_round();
    ASSERT_TRUE(round);
    clock_.advance_ns(10'000'000'000);
    waiters_.end_round(*round, true);
  }
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].error().code, Code::kNoSpace);
}

// While a daemon is stopped, the time does not count for waiting calls.
TEST_F(SpaceWaitersTest, WhileTheProcessStoodStillNobodyWaited) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  RunningClock running(clock_);
  running.set_ticked(true);
  SpaceWaiters waiters(space_, refused_, running, [] {});
  waiters.set_source([] { return true; });
  space_.reserve(kMiB);
  waiters.with_room(take(kMiB), note());
  for (int number = 0; number < 4; ++number) {
    clock_.advance_ns(number == 2 ? 35 * kSecondNs : kSecondNs);
    const auto round = waiters.begin_round();
    ASSERT_TRUE(round);
    waiters.end_round(*round, /*gave_back=*/false);
  }
  EXPECT_TRUE(answers_.empty());
  space_.release(kMiB);
  const auto round = waiters.begin_round();
  ASSERT_TRUE(round);
  waiters.end_round(*round, /*gave_back=*/true);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
}

TEST_F(SpaceWaitersTest, HowLongCallsWaitedIsCounted) {
  space_.reserve(kMiB);
  waiters_.set_source([] { return true; });
  waiters_.with_room(take(kMiB), note());
  clock_.advance_ns(100);
  auto round = waiters_.begin_round();
  waiters_.end_round(*round, true);  // another call took it
  waiters_.with_room(take(kMiB), note());
  clock_.advance_ns(50);
  round = waiters_.begin_round();
  space_.release(kMiB);
  waiters_.end_round(*round, true);
  EXPECT_EQ(waiters_.waited().calls, 2u);
  EXPECT_EQ(waiters_.waited().total_ns, 200);
  EXPECT_EQ(waiters_.waited().longest_ns, 150);
}

TEST_F(SpaceWaitersTest, ARoundCanBeAskedForWithoutWaiting) {
  space_.reserve(kMiB);
  waiters_.ask();
  EXPECT_EQ(asked_, 1);
  const auto round = waiters_.begin_round();
  ASSERT_TRUE(round);
  EXPECT_EQ(waiters_.count(), 0u);
  waiters_.end_round(*round, false);
  waiters_.ask();
  EXPECT_EQ(asked_, 1) << "the last one gave nothing back";
  EXPECT_EQ(waiters_.waited().calls, 0u);
}

TEST_F(SpaceWaitersTest, LittleLeftIsToldOnce) {
  int told = 0;
  space_.set_low_callback([&] { ++told; });
  space_.tell_below(kMiB / 2);
  ASSERT_TRUE(space_.try_reserve(kMiB / 4));
  EXPECT_EQ(told, 0);
  ASSERT_TRUE(space_.try_reserve(kMiB / 2));
  EXPECT_EQ(told, 1);
  ASSERT_TRUE(space_.try_reserve(kMiB / 8));
  EXPECT_EQ(told, 1);
  space_.tell_below(kMiB / 2);
  ASSERT_TRUE(space_.try_reserve(4096));
  EXPECT_EQ(told, 2);
}

TEST_F(SpaceWaitersTest, ACallThatFitsDoesNotWait) {
  waiters_.with_room(take(kMiB), note());
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
  EXPECT_EQ(asked_, 0);
  EXPECT_FALSE(waiters_.begin_round());
}

TEST_F(SpaceWaitersTest, ACallTriesAgainAfterARoundThatGaveBack) {
  space_.reserve(kMiB);
  waiters_.with_room(take(kMiB), note());
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(waiters_.count(), 1u);
  EXPECT_EQ(asked_, 1);
  auto round = waiters_.begin_round();
  ASSERT_TRUE(round);
  EXPECT_FALSE(waiters_.begin_round()) << "nobody asked for another";
  space_.release(kMiB);
  waiters_.end_round(*round, /*gave_back=*/true);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
  EXPECT_EQ(waiters_.count(), 0u);
  EXPECT_EQ(refused_, 0u);
}

TEST_F(SpaceWaitersTest, ARoundThatWasUnderWayIsNotEnough) {
  space_.reserve(kMiB);
  waiters_.with_room(take(1), note());
  auto first = waiters_.begin_round();
  ASSERT_TRUE(first);
  waiters_.with_room(take(2), note());  // its space may have died after that round looked
  waiters_.end_round(*first, true);
  EXPECT_EQ(attempts_, 3) << "the first one only tried again";
  EXPECT_EQ(waiters_.count(), 2u);
  auto second = waiters_.begin_round();
  ASSERT_TRUE(second);
  space_.release(kMiB);
  waiters_.end_round(*second, true);
  EXPECT_EQ(answers_.size(), 2u);
}

TEST_F(SpaceWaitersTest, AfterAFruitlessRoundCallsAreRefusedUntilSomethingDies) {
  space_.reserve(kMiB);
  waiters_.with_room(take(1), note());
  auto round = waiters_.begin_round();
  ASSERT_TRUE(round);
  waiters_.end_round(*round, /*gave_back=*/false);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].error().code, Code::kNoSpace);
  EXPECT_EQ(refused_, 1u);
  waiters_.with_room(take(1), note());
  EXPECT_EQ(answers_.size(), 2u) << "refused at once";
  EXPECT_EQ(asked_, 1);
  space_.hope();
  waiters_.with_room(take(1), note());
  EXPECT_EQ(answers_.size(), 2u);
  EXPECT_EQ(waiters_.count(), 1u);
}

TEST_F(SpaceWaitersTest, WhatDiesDuringAFruitlessRoundIsWorthAnother) {
  space_.reserve(kMiB);
  waiters_.with_room(take(1), note());
  auto round = waiters_.begin_round();
  ASSERT_TRUE(round);
  space_.hope();
  waiters_.end_round(*round, /*gave_back=*/false);
  EXPECT_TRUE(answers_.empty());
  EXPECT_TRUE(waiters_.begin_round());
}

TEST_F(SpaceWaitersTest, ACallGivesUpAfterManyRounds) {
  space_.reserve(kMiB);
  waiters_.with_room(take(1), note());
  int rounds = 0;
  for (auto round = waiters_.begin_round(); round; round = waiters_.begin_round()) {
    ++rounds;
    waiters_.end_round(*round, /*gave_back=*/true);  // and others take it
  }
  EXPECT_EQ(rounds, 16);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].error().code, Code::kNoSpace);
}

TEST_F(SpaceWaitersTest, OtherErrorsAreAnsweredAtOnce) {
  waiters_.with_room([]() -> Status { return fail(Code::kIo, "broken"); }, note());
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].error().code, Code::kIo);
  EXPECT_EQ(refused_, 0u);
}

TEST_F(SpaceWaitersTest, AtTheEndEveryCallIsAnswered) {
  space_.reserve(kMiB);
  waiters_.with_room(take(1), note());
  waiters_.with_room(take(1), note());
  waiters_.stop();
  SpaceWaiters::Turn turn;
  EXPECT_FALSE(waiters_.wait(turn, [] {}));
  EXPECT_EQ(turn.rounds, 0);
  waiters_.answer_all();
  EXPECT_EQ(answers_.size(), 2u);
  EXPECT_EQ(waiters_.count(), 0u);
  EXPECT_EQ(refused_, 2u);
}

TEST_F(SpaceWaitersTest, NoCallIsLostBetweenThreads) {
  constexpr int kCalls = 500, kThreads = 3;
  std::atomic<int> answered{0};
  std::atomic<bool> over{false};
  std::thread keeper([&] {
    while (!over) {
      if (auto round = waiters_.begin_round()) waiters_.end_round(*round, true);
      else std::this_thread::yield();
    }
  });
  std::vector<std::thread> callers;
  for (int thread = 0; thread < kThreads; ++thread)
    callers.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i)
        waiters_.with_room([&, tries = 0]() mutable -> Status {
          if (++tries > 2) return {};
          return fail(Code::kNoSpace, "full");
        }, [&](const Status&) { ++answered; });
    });
  for (std::thread& caller : callers) caller.join();
  while (waiters_.count() > 0) std::this_thread::yield();
  over = true;
  keeper.join();
  waiters_.stop();
  waiters_.answer_all();
  EXPECT_EQ(answered, kThreads * kCalls);
}

}  // namespace space_waiters_test
}  // namespace kvcachefs
