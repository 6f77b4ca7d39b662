#include "store/base/running_clock.h"

#include <algorithm>
#include <mutex>

namespace kvcachefs {

namespace {
constexpr int64_t kMostNs = 5 * RunningClock::kTickNs / 2;  // most time between two ticks, on a busy machine
}  // namespace

void RunningClock::set_ticked(bool ticked) {
  std::lock_guard lock(mutex_);
  advance();
  ticked_ = ticked;
}

int64_t RunningClock::monotonic_ns() const {
  std::lock_guard lock(mutex_);
  return advance();
}

int64_t RunningClock::went_on_ns() const {
  std::lock_guard lock(mutex_);
  advance();
  return went_on_ns_;
}

int64_t RunningClock::advance() const {
  const int64_t now_ns = std::max(clock_.monotonic_ns(), seen_ns_);
  if (const int64_t too_long_ns = now_ns - seen_ns_ - kMostNs; ticked_ && too_long_ns > 0) {
    missed_ns_ += too_long_ns;
    went_on_ns_ = now_ns;
  }
  seen_ns_ = now_ns;
  return now_ns - missed_ns_;
}

}  // namespace kvcachefs
