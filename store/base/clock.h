// Time is injected, so that tests and the simulator own it.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/base/types.h"

namespace kvcachefs {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t realtime_ns() const = 0;   // since the Unix epoch
  virtual int64_t monotonic_ns() const = 0;  // never goes back
};

// The machine's clocks. Thread-safe, lives for ever.
Clock& system_clock();

class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t start_ns) : now_ns_(start_ns) {}
  int64_t realtime_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
  int64_t monotonic_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
  void advance_ns(int64_t by_ns) { now_ns_.fetch_add(by_ns, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_;
};

// Hybrid logical clock: wall time, but strictly increasing, also past a stamp seen from elsewhere. Thread-safe.
class HybridClock {
 public:
  explicit HybridClock(Clock& clock) : clock_(clock) {}
  Stamp next();
  void observe(Stamp seen);

 private:
  Clock& clock_;
  std::atomic<uint64_t> last_{0};
};

}  // namespace kvcachefs
