#include "store/base/running_clock.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace running_clock_test {

constexpr int64_t kSecondNs = 1'000'000'000;

TEST(RunningClock, TimeInWhichTheProcessStoodStillDoesNotCount) {
  ManualClock clock(1000 * kSecondNs);
  RunningClock running(clock);
  EXPECT_EQ(running.monotonic_ns(), clock.monotonic_ns());
  running.set_ticked(true);
  const int64_t began_ns = running.monotonic_ns();
  for (int second = 0; second < 10; ++second) {
    clock.advance_ns(kSecondNs);
    running.tick();
  }
  EXPECT_EQ(running.monotonic_ns() - began_ns, 10 * kSecondNs);
  clock.advance_ns(35 * kSecondNs);  // SIGSTOP
  EXPECT_LE(running.monotonic_ns() - began_ns, 13 * kSecondNs) << "also for who looks before it is ticked again";
  clock.advance_ns(kSecondNs);
  EXPECT_LE(running.monotonic_ns() - began_ns, 14 * kSecondNs);
  EXPECT_GT(running.monotonic_ns() - began_ns, 11 * kSecondNs);
  EXPECT_EQ(running.realtime_ns(), clock.realtime_ns());
}

TEST(RunningClock, TellsWhenTheProcessWentOn) {
  ManualClock clock(1000 * kSecondNs);
  RunningClock running(clock);
  clock.advance_ns(100 * kSecondNs);
  EXPECT_EQ(running.went_on_ns(), 0) << "nobody ticked it";
  running.set_ticked(true);
  clock.advance_ns(2 * kSecondNs);
  EXPECT_EQ(running.went_on_ns(), 0);
  clock.advance_ns(10 * kSecondNs);
  EXPECT_EQ(running.went_on_ns(), clock.monotonic_ns());
  clock.advance_ns(kSecondNs);
  EXPECT_EQ(running.went_on_ns(), running.machine_ns() - kSecondNs);
}

TEST(RunningClock, WhereNobodyTicksItIsTheMachines) {
  ManualClock clock(1000 * kSecondNs);
  RunningClock running(clock);
  clock.advance_ns(100 * kSecondNs);
  EXPECT_EQ(running.monotonic_ns(), clock.monotonic_ns());
  running.set_ticked(true);
  running.set_ticked(false);
  const int64_t began_ns = running.monotonic_ns();
  clock.advance_ns(100 * kSecondNs);
  EXPECT_EQ(running.monotonic_ns() - began_ns, 100 * kSecondNs);
}

}  // namespace running_clock_test
}  // namespace kvcachefs
