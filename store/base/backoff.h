// Decides when a failed operation may be tried again: after a pause that doubles with each failure in a row, up to a limit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace kvcachefs {

// Thread-safe. Has no clock: the caller passes the time of the monotonic clock.
class Backoff {
 public:
  Backoff(int64_t first_ns, int64_t most_ns) : first_ns_(first_ns), most_ns_(most_ns) {}

  // False while the pause after the last failure lasts.
  bool may_try(int64_t now_ns) const { return now_ns >= next_ns_.load(std::memory_order_relaxed); }
  int64_t next_try_ns() const { return next_ns_.load(std::memory_order_relaxed); }
  void failed(int64_t now_ns) {
    const int64_t pause_ns = pause_ns_.load(std::memory_order_relaxed);
    next_ns_.store(now_ns + pause_ns, std::memory_order_relaxed);
    pause_ns_.store(std::min(most_ns_, 2 * pause_ns), std::memory_order_relaxed);
    int64_t none = 0;
    failing_since_ns_.compare_exchange_strong(none, std::max<int64_t>(now_ns, 1), std::memory_order_relaxed);
  }
  void succeeded() {
    pause_ns_.store(first_ns_, std::memory_order_relaxed);
    next_ns_.store(INT64_MIN, std::memory_order_relaxed);
    failing_since_ns_.store(0, std::memory_order_relaxed);
  }
  // Call when the reason may be over: the next try is allowed at once.
  void try_soon() { next_ns_.store(INT64_MIN, std::memory_order_relaxed); }
  // How long every try has failed; 0: the last one succeeded.
  int64_t failing_for_ns(int64_t now_ns) const {
    const int64_t since = failing_since_ns_.load(std::memory_order_relaxed);
    return since == 0 ? 0 : std::max<int64_t>(1, now_ns - since);
  }

 private:
  const int64_t first_ns_, most_ns_;
  std::atomic<int64_t> pause_ns_{first_ns_}, next_ns_{INT64_MIN}, failing_since_ns_{0};
};

}  // namespace kvcachefs
