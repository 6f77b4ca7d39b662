#include "store/base/log_limiter.h"

#include <gtest/gtest.h>

namespace kvcachefs::log {
namespace log_limiter_test {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kError = 4;

TEST(LogLimiter, LinesThatDifferInNumbersAreOfOneKind) {
  EXPECT_EQ(Limiter::kind_of("object 17 could not be written: a/1/2.solo"), Limiter::kind_of("object 4 could not be written: a/3/77.solo"));
  EXPECT_EQ(Limiter::kind_of("chunk 0a1bff"), Limiter::kind_of("chunk ffe012345"));
  EXPECT_NE(Limiter::kind_of("sync of 17"), Limiter::kind_of("open of 17"));
}

TEST(LogLimiter, AFloodIsTenLinesAndOneWithTheCount) {
  Limiter limiter;
  int written = 0;
  for (int i = 0; i < 15'010; ++i) written += limiter.ask(kError, "create of file " + std::to_string(i) + " failed", i).write;
  EXPECT_EQ(written, 10);
  EXPECT_TRUE(limiter.take_held_back(9 * kSecond).empty());
  const auto lines = limiter.take_held_back(10 * kSecond);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].text, "create of file 15009 failed (repeated 15000 times in 10 s)");
  EXPECT_EQ(lines[0].level, kError);
  EXPECT_TRUE(limiter.take_held_back(30 * kSecond).empty());
}

TEST(LogLimiter, TheNextLineOfAKindTellsOfThoseBefore) {
  Limiter limiter({.lines = 1});
  EXPECT_TRUE(limiter.ask(kError, "full 1", 0).write);
  EXPECT_FALSE(limiter.ask(kError, "full 2", kSecond).write);
  EXPECT_TRUE(limiter.ask(kError, "another", kSecond).write);
  const auto verdict = limiter.ask(kError, "full 3", 12 * kSecond);
  EXPECT_TRUE(verdict.write);
  EXPECT_EQ(verdict.first, "full 2 (repeated 1 times in 12 s)");
  EXPECT_TRUE(limiter.ask(kError, "full 4", 30 * kSecond).first.empty());
}

TEST(LogLimiter, AtTheEndAllIsTold) {
  Limiter limiter({.lines = 1});
  for (int i = 0; i < 3; ++i) limiter.ask(kError, "full", 0);
  const auto lines = limiter.take_held_back(kSecond, /*all=*/true);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].text, "full (repeated 2 times in 1 s)");
}

TEST(LogLimiter, AfterTheLastWordAllIsCounted) {
  Limiter limiter;
  EXPECT_TRUE(limiter.ask(3, "its node was removed", 0).write);
  limiter.let_nothing_through(2);
  for (int line = 0; line < 20; ++line) EXPECT_FALSE(limiter.ask(4, line % 2 == 0 ? "upkeep: no node" : "another kind", 0).write);
  EXPECT_TRUE(limiter.take_held_back(60'000'000'000).empty());
  const auto lines = limiter.take_held_back(60'000'000'000, /*all=*/true);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].level, 2);
  EXPECT_EQ(lines[0].text.substr(0, 3), "20 ");
  EXPECT_TRUE(limiter.take_held_back(60'000'000'000, /*all=*/true).empty());
}

TEST(LogLimiter, ManyKindsTakeNoMoreMemory) {
  Limiter limiter({.lines = 1, .kinds = 4});
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(limiter.ask(kError, std::string(static_cast<size_t>(i % 100), 'x'), i / 100 * 20 * kSecond).write);
}

}  // namespace log_limiter_test
}  // namespace kvcachefs::log
