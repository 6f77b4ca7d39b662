#include "store/base/clock.h"

#include <algorithm>
#include <ctime>

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
}  // namespace

Clock& system_clock() {
  static SystemClock clock;
  return clock;
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
