// Clocks are injected, so that tests and the simulator control time.
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

// The machine's clocks. Thread-safe, never destroyed.
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

// The clock for handling requests. A request needs the time in several places, and reading the machine's clock is free only where the
// kernel has mapped it into the process; else it is a system call (12 us in a guest without the mapping). Thread-safe.
class RequestClock final : public Clock {
 public:
  explicit RequestClock(Clock& clock) : clock_(clock) {}
  // Between hold() and release() time stands still for the calling thread from its first look at the clock; the wall clock may then lag a
  // step of the machine's clock by up to a second. A second hold() begins anew; release() without hold() does nothing.
  void hold();
  void release();
  int64_t realtime_ns() const override;
  int64_t monotonic_ns() const override;

 private:
  bool is_held() const;
  Clock& clock_;
  mutable std::atomic<int64_t> since_start_ns_{0};     // wall clock minus monotonic clock, as of
  mutable std::atomic<int64_t> looked_ns_{INT64_MIN};  // this monotonic time; INT64_MIN: never read
};

// Hybrid logical clock: wall time, but strictly increasing, and later than any stamp it has observed. Thread-safe.
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
