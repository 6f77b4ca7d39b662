#include "tools/load/statistics.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace statistics_test {

TEST(Statistics, MedianOfOddAndEvenCounts) {
  const std::vector<double> odd = {5, 1, 3};
  EXPECT_EQ(summarize(odd).median, 3);
  EXPECT_EQ(summarize(odd).min, 1);
  EXPECT_EQ(summarize(odd).max, 5);
  const std::vector<double> even = {4, 1, 3, 2};
  EXPECT_EQ(summarize(even).median, 2.5);
  EXPECT_EQ(summarize(even).count, 4u);
}

TEST(Statistics, NothingIsZero) {
  EXPECT_EQ(summarize({}).count, 0u);
  EXPECT_EQ(percentile({}, 99), 0);
}

TEST(Statistics, PercentileIsNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  EXPECT_EQ(percentile(samples, 50), 50);
  EXPECT_EQ(percentile(samples, 95), 95);
  EXPECT_EQ(percentile(samples, 99), 99);
  EXPECT_EQ(percentile(samples, 100), 100);
  EXPECT_EQ(percentile(samples, 0), 1);
  const std::vector<double> one = {7};
  EXPECT_EQ(percentile(one, 99), 7);
}

}  // namespace statistics_test
}  // namespace kvcachefs
