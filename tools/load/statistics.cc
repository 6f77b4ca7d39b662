#include "tools/load/statistics.h"

#include <algorithm>
#include <cmath>

namespace kvcachefs {

Summary summarize(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted);
  const size_t middle = sorted.size() / 2;
  const double median = sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return {median, sorted.front(), sorted.back(), sorted.size()};
}

double percentile(std::span<const double> samples, double percent) {
  if (samples.empty()) return 0;
  std::vector<double> sorted(samples.begin(), samples.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  const size_t index = std::min(sorted.size() - 1, static_cast<size_t>(std::max(rank, 1.0)) - 1);
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<ptrdiff_t>(index));
  return sorted[index];
}

}  // namespace kvcachefs
