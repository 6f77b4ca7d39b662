#include "store/base/health.h"

#include <algorithm>
#include <mutex>

namespace kvcachefs {

void Health::report(Of of, const Status& status) {
  const auto index = static_cast<size_t>(of);
  const auto bit = static_cast<uint8_t>(1U << index);
  if (status && (failing_.load(std::memory_order_relaxed) & bit) == 0) return;  // the usual case
  std::lock_guard lock(mutex_);
  errors_[index] = status ? std::nullopt : std::optional(status.error());
  if (status)
    failing_ &= static_cast<uint8_t>(~bit);
  else
    failing_ |= bit;
  const auto first = std::ranges::find_if(errors_, [](const auto& error) { return error.has_value(); });
  const bool failed_before = !state_.reason.empty();
  state_.reason = first == errors_.end() ? std::string() : (*first)->message;
  if (failed_before == state_.reason.empty()) state_.since_ns = clock_.realtime_ns();
}

std::optional<Error> Health::error(Of of) const {
  std::lock_guard lock(mutex_);
  return errors_[static_cast<size_t>(of)];
}

Health::State Health::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void Health::start() {
  std::lock_guard lock(mutex_);
  state_.since_ns = clock_.realtime_ns();
}

}  // namespace kvcachefs
