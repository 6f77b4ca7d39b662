// Medians, extremes and percentiles of samples.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvcachefs {

struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  size_t count = 0;
};

// All zero for no samples. The median of an even count is the mean of the middle two.
Summary summarize(std::span<const double> samples);

// Nearest rank: the smallest sample that at least `percent` % of the samples do not exceed. 0 for no samples.
double percentile(std::span<const double> samples, double percent);

}  // namespace kvcachefs
