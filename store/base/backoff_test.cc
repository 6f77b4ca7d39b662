#include "store/base/backoff.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace backoff_test {

TEST(Backoff, PausesDoubleUpToTheLimitAndEndWithASuccess) {
  Backoff backoff(10, 40);
  EXPECT_TRUE(backoff.may_try(0));
  EXPECT_EQ(backoff.failing_for_ns(5), 0);
  int64_t now = 100;
  for (const int64_t pause : {10, 20, 40, 40}) {
    backoff.failed(now);
    EXPECT_FALSE(backoff.may_try(now + pause - 1));
    EXPECT_TRUE(backoff.may_try(now + pause));
    now += pause;
  }
  EXPECT_EQ(backoff.failing_for_ns(now), now - 100);
  backoff.succeeded();
  EXPECT_TRUE(backoff.may_try(now));
  EXPECT_EQ(backoff.failing_for_ns(now), 0);
  backoff.failed(now);
  EXPECT_TRUE(backoff.may_try(now + 10)) << "the first pause again";
}

TEST(Backoff, CanBeCutShort) {
  Backoff backoff(10, 40);
  backoff.failed(0);
  backoff.try_soon();
  EXPECT_TRUE(backoff.may_try(1));
  EXPECT_GT(backoff.failing_for_ns(1), 0) << "it still fails";
}

}  // namespace backoff_test
}  // namespace kvcachefs
