#include "store/chain/estimator.h"

#include <algorithm>

namespace kvcachefs {

VolumeEstimator::VolumeEstimator(int64_t period_ns) : period_ns_(std::max<int64_t>(period_ns, 1)) {}

void VolumeEstimator::roll(int64_t now) {
  if (!started_) {
    started_ = true;
    period_start_ = now;
  }
  if (now - period_start_ < period_ns_) return;
  const bool stale = now - period_start_ >= 2 * period_ns_ && best_latency_[0] < 0;
  best_rate_[1] = stale ? 0 : best_rate_[0];
  best_latency_[1] = stale ? -1 : best_latency_[0];
  best_rate_[0] = 0;
  best_latency_[0] = -1;
  period_start_ = now;
}

// The bytes delivered before a load issued at `when` began; `since` = the time of that count.
uint64_t VolumeEstimator::delivered_before(int64_t when, int64_t& since) const {
  since = when;
  for (size_t back = 1; back <= history_size_; ++back) {
    const Completion& done = history_[(history_next_ + kHistory - back) % kHistory];
    if (done.at <= when) return done.delivered;
    if (back == history_size_ && history_size_ == kHistory) {  // more completions since then than are remembered
      since = done.at;
      return done.delivered;
    }
  }
  return 0;
}

void VolumeEstimator::on_load(uint64_t bytes, int64_t latency_ns, int64_t now) {
  if (bytes == 0 || latency_ns <= 0) return;
  roll(now);
  int64_t since = 0;
  const uint64_t before = delivered_before(now - latency_ns, since);
  delivered_ += bytes;
  const int64_t took = std::max<int64_t>(now - since, 1000);
  best_rate_[0] = std::max(best_rate_[0], static_cast<double>(delivered_ - before) * 1e9 / static_cast<double>(took));
  if (best_latency_[0] < 0 || latency_ns < best_latency_[0]) best_latency_[0] = latency_ns;
  mean_latency_ns_ = mean_latency_ns_ == 0
                         ? static_cast<double>(latency_ns)
                         : mean_latency_ns_ + (static_cast<double>(latency_ns) - mean_latency_ns_) / 8;
  history_[history_next_] = Completion{now, delivered_};
  history_next_ = (history_next_ + 1) % kHistory;
  history_size_ = std::min(history_size_ + 1, kHistory);
}

double VolumeEstimator::bandwidth_bytes_per_s() const {
  const double rate = std::max(best_rate_[0], best_rate_[1]);
  return rate > 0 ? rate : kDefaultBandwidth;
}

int64_t VolumeEstimator::base_latency_ns() const {
  if (best_latency_[0] < 0 && best_latency_[1] < 0) return kDefaultLatencyNs;
  if (best_latency_[0] < 0) return best_latency_[1];
  if (best_latency_[1] < 0) return best_latency_[0];
  return std::min(best_latency_[0], best_latency_[1]);
}

int64_t VolumeEstimator::mean_latency_ns() const {
  return mean_latency_ns_ > 0 ? static_cast<int64_t>(mean_latency_ns_) : kDefaultLatencyNs;
}

uint64_t VolumeEstimator::bandwidth_delay_bytes() const {
  return static_cast<uint64_t>(bandwidth_bytes_per_s() * static_cast<double>(base_latency_ns()) / 1e9);
}

}  // namespace kvcachefs
