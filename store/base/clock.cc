#include "store/base/clock.h"

#include <algorithm>
#include <ctime>
#include <optional>

namespace kvcachefs {

namespace {
int64_t read_clock_ns(clockid_t id) {
  timespec ts{};
  clock_gettime(id, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

class SystemClock final : public Clock {
 public:
  int64_t realtime_ns() const override { return read_clock_ns(CLOCK_REALTIME); }
  int64_t monotonic_ns() const override { return read_clock_ns(CLOCK_MONOTONIC); }
};

// The moment that a thread holds of a RequestClock.
struct HeldMoment {
  const RequestClock* of = nullptr;  // nullptr: nothing is held
  std::optional<int64_t> monotonic_ns;
};
constinit thread_local HeldMoment held_moment;
}  // namespace

Clock& system_clock() {
  static SystemClock clock;
  return clock;
}

void RequestClock::hold() { held_moment = {.of = this, .monotonic_ns = std::nullopt}; }
void RequestClock::release() { held_moment = {}; }
bool RequestClock::is_held() const { return held_moment.of == this; }

int64_t RequestClock::monotonic_ns() const {
  if (!is_held()) return clock_.monotonic_ns();
  if (!held_moment.monotonic_ns) held_moment.monotonic_ns = clock_.monotonic_ns();
  return *held_moment.monotonic_ns;
}

int64_t RequestClock::realtime_ns() const {
  constexpr int64_t kLookAgainNs = 1'000'000'000;
  if (!is_held()) return clock_.realtime_ns();
  const int64_t now_ns = monotonic_ns(), looked_ns = looked_ns_.load(std::memory_order_acquire);
  if (looked_ns == INT64_MIN || now_ns - looked_ns >= kLookAgainNs) {
    since_start_ns_.store(clock_.realtime_ns() - now_ns, std::memory_order_relaxed);
    looked_ns_.store(now_ns, std::memory_order_release);
  }
  return since_start_ns_.load(std::memory_order_relaxed) + now_ns;
}

Stamp HybridClock::next() {
  const auto wall = static_cast<uint64_t>(std::max<int64_t>(clock_.realtime_ns(), 1));
  uint64_t last = last_.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    next = std::max(wall, last + 1);
  } while (!last_.compare_exchange_weak(last, next, std::memory_order_relaxed));
  return Stamp{next};
}

void HybridClock::observe(Stamp seen) {
  uint64_t last = last_.load(std::memory_order_relaxed);
  while (last < seen.value && !last_.compare_exchange_weak(last, seen.value, std::memory_order_relaxed)) {
  }
}

}  // namespace kvcachefs
