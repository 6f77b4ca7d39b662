// What fails again and again for as long as its reason lasts (a volume that takes nothing), told so that the first of it stays among
// the newest lines of the log.
#pragma once

#include <atomic>
#include <string_view>

#include "store/base/clock.h"
#include "store/base/log_limiter.h"

namespace kvcachefs::log {

// Thread-safe.
class LastingFailure {
 public:
  explicit LastingFailure(const Clock& clock = system_clock()) : clock_(clock) {}

  // It failed. Of one kind of line (log_limiter.h) the first is written as an error, and after that one in ten minutes, with the number of
  // those held back.
  void tell(std::string_view line);
  // It worked: what was held back is written, and the next failure is told at once. Takes no lock where none was told.
  void over();

 private:
  const Clock& clock_;
  Limiter limiter_{{.lines = 1, .period_ns = 600'000'000'000, .kinds = 16}};
  std::atomic<bool> told_{false};
};

}  // namespace kvcachefs::log
