#include "store/base/lasting_failure.h"

#include "store/base/log.h"

namespace kvcachefs::log {

void LastingFailure::tell(std::string_view line) {
  told_.store(true, std::memory_order_relaxed);
  const Limiter::Verdict verdict = limiter_.ask(static_cast<int>(Level::kError), line, clock_.monotonic_ns());
  if (!verdict.first.empty()) error("{}", verdict.first);
  if (verdict.write) error("{}", line);
}

void LastingFailure::over() {
  if (!told_.load(std::memory_order_relaxed) || !told_.exchange(false, std::memory_order_relaxed)) return;
  for (const Limiter::Line& line : limiter_.take_held_back(clock_.monotonic_ns(), /*all=*/true)) error("{}", line.text);
}

}  // namespace kvcachefs::log
