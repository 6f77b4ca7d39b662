// Time during which this process ran; timeouts of waiting calls use it. After a stop (SIGSTOP, a frozen container) the machine's clock is
// ahead of the time that the daemon's threads had, and by it the daemon would refuse calls that it did not let wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/base/clock.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe. While it is not ticked it advances like the clock that it wraps.
class RunningClock final : public Clock {
 public:
  static constexpr int64_t kTickNs = 1'000'000'000;
  explicit RunningClock(const Clock& clock) : clock_(clock) {}

  // `ticked`: a thread that waits for nothing else calls tick() about every kTickNs. Then the clock advances by a few ticks at most between two calls.
  void set_ticked(bool ticked);
  void tick() { static_cast<void>(monotonic_ns()); }

  int64_t monotonic_ns() const override;
  int64_t machine_ns() const { return clock_.monotonic_ns(); }  // of the clock that it wraps
  int64_t went_on_ns() const;  // by machine_ns(): when it was last noticed that the process had stood still; 0: it never did
  int64_t realtime_ns() const override { return clock_.realtime_ns(); }

 private:
  int64_t advance() const;  // mutex_ held
  const Clock& clock_;
  mutable LeafMutex mutex_;  // a leaf; guards:
  mutable int64_t seen_ns_ = 0, missed_ns_ = 0, went_on_ns_ = 0;
  bool ticked_ = false;
};

}  // namespace kvcachefs
