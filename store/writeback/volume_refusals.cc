#include "store/writeback/volume_refusals.h"

#include <mutex>
#include <utility>

#include "store/base/volume_error.h"

namespace kvcachefs {

void VolumeRefusals::failed(const Error& error) {
  backoff_.failed(clock_.monotonic_ns());
  {
    std::lock_guard lock(mutex_);
    last_ = error_of_volume(error);
  }
  if (error.code == Code::kNoSpace) space_.set_refused(true);
}

bool VolumeRefusals::succeeded() {
  if (!is_failing()) return false;  // so in most calls
  backoff_.succeeded();
  {
    std::lock_guard lock(mutex_);
    last_.reset();
  }
  space_.set_refused(false);
  return true;
}

void VolumeRefusals::set_gone(std::optional<Error> gone) {
  gone_.store(gone.has_value(), std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  gone_why_ = std::move(gone);
}

void VolumeRefusals::journal_ended(const Status& status) {
  constexpr int64_t kMostNs = 35'000'000'000;
  if (status) {
    journal_pause_.succeeded();
    return journal_lacks_until_ns_.store(INT64_MIN, std::memory_order_relaxed);
  }
  journal_pause_.failed(clock_.monotonic_ns());
  if (status.error().code != Code::kNoSpace || journal_lacks_room()) return;
  journal_lacks_until_ns_.store(clock_.monotonic_ns() + kMostNs, std::memory_order_relaxed);
}

std::optional<Error> VolumeRefusals::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

std::optional<Error> VolumeRefusals::gone() const {
  std::lock_guard lock(mutex_);
  return gone_why_;
}

std::optional<Error> VolumeRefusals::lasting() const {
  constexpr int64_t kFullNs = 1'000'000'000, kOtherNs = 10'000'000'000;
  if (is_gone()) {
    std::lock_guard lock(mutex_);
    return gone_why_;
  }
  const int64_t failing_ns = backoff_.failing_for_ns(clock_.monotonic_ns());
  if (failing_ns < kFullNs) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (!last_ || (!lacks_files(*last_) && failing_ns < kOtherNs)) return std::nullopt;
  return last_;
}

}  // namespace kvcachefs
