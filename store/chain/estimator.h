// Estimates the volume's speed from finished loads: its bandwidth, and the latency of a load without queueing. Both are extremes
// over a sliding window (highest rate, lowest latency): queueing caused by the prefetch itself then does not widen the window,
// and a volume that gets slower is noticed within two periods.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvcachefs {

class VolumeEstimator {
 public:
  explicit VolumeEstimator(int64_t period_ns = 5'000'000'000);

  // A load of `bytes` ended at `now`, `latency_ns` after it was issued.
  void on_load(uint64_t bytes, int64_t latency_ns, int64_t now);

  double bandwidth_bytes_per_s() const;  // kDefaultBandwidth until measured
  int64_t base_latency_ns() const;       // of an unloaded volume; kDefaultLatencyNs until measured
  int64_t mean_latency_ns() const;       // the present one, queueing included
  uint64_t bandwidth_delay_bytes() const;

  // Assumptions for the first loads: a local NVMe.
  static constexpr double kDefaultBandwidth = 1024.0 * 1024 * 1024;
  static constexpr int64_t kDefaultLatencyNs = 1'000'000;

 private:
  struct Completion {
    int64_t at = 0;
    uint64_t delivered = 0;
  };
  void roll(int64_t now);
  uint64_t delivered_before(int64_t when, int64_t& since) const;

  static constexpr size_t kHistory = 256;
  int64_t period_ns_;
  int64_t period_start_ = 0;
  bool started_ = false;
  uint64_t delivered_ = 0;
  std::array<Completion, kHistory> history_{};
  size_t history_size_ = 0;
  size_t history_next_ = 0;
  // [0]: the current period, [1]: the previous one.
  std::array<double, 2> best_rate_{};
  std::array<int64_t, 2> best_latency_{-1, -1};
  double mean_latency_ns_ = 0;
};

}  // namespace kvcachefs
