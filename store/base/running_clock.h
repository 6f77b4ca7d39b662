// Time in which this process ran. Patience is counted by it: a daemon that was stopped (SIGSTOP, a frozen container) finds the machine's clock
// further on than its threads had time for, and would refuse calls that it did not let wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/base/clock.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe. Where nobody ticks it is the clock that it is given, from there on.
class RunningClock final : public Clock {
 public:
  static constexpr int64_t kTickNs = 1'000'000'000;
  explicit RunningClock(const Clock& clock) : clock_(clock) {}

  // While it is ticked, each kTickNs or so, by a thread that waits for nothing else, no more than a few ticks pass between two calls of this.
  void set_ticked(bool ticked);
  void tick() { static_cast<void>(monotonic_ns()); }

  int64_t monotonic_ns() const override;
  int64_t realtime_ns() const override { return clock_.realtime_ns(); }

 private:
  int64_t advance() const;  // mutex_ held
  const Clock& clock_;
  mutable LeafMutex mutex_;  // a leaf; guards:
  mutable int64_t seen_ns_ = 0, missed_ns_ = 0;
  bool ticked_ = false;
};

}  // namespace kvcachefs
