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

// The clock that requests are handled by. Reading the machine's costs nothing where the kernel has mapped it into the process,
// else a system call (12 us in a guest without one), and a request wants to know the time in several places. Thread-safe.
class RequestClock final : public Clock {
 public:
  explicit RequestClock(Clock& clock) : clock_(clock) {}
  // Between the two, time stands still for the calling thread from when it first asks for it; the wall clock then is up to a
  // second behind a step of the machine's. Once more hold() begins anew, release() without it does nothing.
  void hold();
  void release();
  int64_t realtime_ns() const override;
  int64_t monotonic_ns() const override;

 private:
  bool is_held() const;
  Clock& clock_;
  mutable std::atomic<int64_t> since_start_ns_{0};     // of the wall clock when the monotonic one was 0, as of
  mutable std::atomic<int64_t> looked_ns_{INT64_MIN};  // this monotonic time; INT64_MIN: never looked
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
