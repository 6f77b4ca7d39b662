// Logs a failure that repeats for as long as its reason lasts (a volume that takes nothing), seldom enough that its first line stays
// among the newest lines of the log.
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

  // Reports a failure. Of one kind of line (log_limiter.h) the first is logged as an error, and after that one every ten minutes, with the number
  // of lines held back.
  void tell(std::string_view line);
  // Reports success: logs what was held back; the next failure is logged at once. Takes no lock if no failure was reported.
  void over();

 private:
  const Clock& clock_;
  Limiter limiter_{{.lines = 1, .period_ns = 600'000'000'000, .kinds = 16}};
  std::atomic<bool> told_{false};
};

}  // namespace kvcachefs::log
