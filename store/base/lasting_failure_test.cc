#include "store/base/lasting_failure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "store/base/log.h"

namespace kvcachefs::log {
namespace lasting_failure_test {

size_t lines_with(const std::string& text) {
  const auto lines = recent();
  return static_cast<size_t>(std::ranges::count_if(lines, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
}

TEST(LastingFailure, TheFirstIsToldAndTheOthersAreCounted) {
  ManualClock clock(1'000'000'000'000);
  LastingFailure failure(clock);
  failure.over();
  for (int i = 0; i < 100; ++i) {
    failure.tell("lasting a: file " + std::to_string(i));
    clock.advance_ns(2'000'000'000);
  }
  EXPECT_EQ(lines_with("lasting a: file 0"), 1u);
  EXPECT_EQ(lines_with("lasting a"), 1u);
  failure.tell("lasting b");
  EXPECT_EQ(lines_with("lasting b"), 1u) << "another kind";
  clock.advance_ns(600'000'000'000);
  failure.tell("lasting a: file 200");
  EXPECT_EQ(lines_with("lasting a: file 99 (repeated 99 times in 800 s)"), 1u);
  EXPECT_EQ(lines_with("lasting a: file 200"), 1u);
}

TEST(LastingFailure, WhenItIsOverWhatWasHeldBackIsToldAndTheNextIsNew) {
  ManualClock clock(1'000'000'000'000);
  LastingFailure failure(clock);
  for (int i = 0; i < 3; ++i) failure.tell("passing: file " + std::to_string(i));
  clock.advance_ns(1'000'000'000);
  failure.over();
  EXPECT_EQ(lines_with("passing: file 2 (repeated 2 times in 1 s)"), 1u);
  failure.over();
  EXPECT_EQ(lines_with("passing"), 2u);
  failure.tell("passing: file 3");
  EXPECT_EQ(lines_with("passing: file 3"), 1u);
}

}  // namespace lasting_failure_test
}  // namespace kvcachefs::log
