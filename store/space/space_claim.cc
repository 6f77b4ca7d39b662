// A node's claim on the capacity of a volume that several nodes share, as it limits Space.
#include <algorithm>
#include <mutex>
#include <utility>

#include "store/space/space.h"

namespace kvcachefs {

void Space::configure(uint64_t limit_bytes, uint64_t keep_free_bytes) {
  std::lock_guard lock(mutex_);
  if (limit_bytes < limit_bytes_ && lone_bytes_ == 0) sinks_to_bytes_ = std::min(sinks_to_bytes_, used());
  limit_bytes_ = limit_bytes;
  keep_free_bytes_ = keep_free_bytes;
}

void Space::set_claim(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  claim_bytes_ = bytes;
  sinks_to_bytes_ = UINT64_MAX;
}

void Space::sink_claim(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  sinks_to_bytes_ = bytes;
}

bool Space::claim_sinks() const {
  std::lock_guard lock(mutex_);
  return sinks_to_bytes_ < claim_bytes_;
}

uint64_t Space::lower_claim(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return claim_bytes_ = std::max(bytes, held());
}

void Space::set_shared(uint64_t unclaimed_bytes, uint64_t capacity_bytes, uint64_t lone_bytes) {
  std::lock_guard lock(mutex_);
  lone_bytes_ = lone_bytes;
  unclaimed_bytes_ = unclaimed_bytes;
  shared_limit_bytes_ = capacity_bytes;
}

void Space::hold_claim_until(int64_t until_ns) {
  std::lock_guard lock(mutex_);
  claim_until_ns_ = until_ns;
}

bool Space::claim_has_lapsed() const {
  std::lock_guard lock(mutex_);
  return lapsed();
}

bool Space::lapsed() const { return claim_until_ns_ != INT64_MAX && claim_now_ns_ && claim_now_ns_() > claim_until_ns_; }

void Space::tell_claim_below(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  tell_claim_below_bytes_ = bytes;
}

uint64_t Space::take_lacking_bytes() {
  std::lock_guard lock(mutex_);
  return std::exchange(lacking_bytes_, 0);
}

void Space::note_lacking(uint64_t bytes) {
  bool claim_low = false;
  {
    std::lock_guard lock(mutex_);
    const uint64_t there = room(usable_claim());
    if (bytes <= there || refused_ || lapsed()) return;
    lacking_bytes_ = std::max(lacking_bytes_, bytes - there);
    claim_low = std::exchange(tell_claim_below_bytes_, 0) > 0;
  }
  if (claim_low && claim_low_) claim_low_();
}

uint64_t Space::used_bytes() const {
  std::lock_guard lock(mutex_);
  return held();
}

uint64_t Space::used_soon_bytes() const {
  std::lock_guard lock(mutex_);
  return used() - coming() + std::min(stays_bytes_, dead_bytes_ + orphaned_bytes_);
}

void Space::set_dead_that_stays(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  stays_bytes_ = bytes;
}

bool Space::reserve_at_once(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > room(own_bytes())) return false;
  reserved_bytes_ += bytes;
  return true;
}

uint64_t Space::own_limit_bytes() const {
  std::lock_guard lock(mutex_);
  return std::min(limit(), own_bytes());
}

uint64_t Space::own_free_bytes() const {
  std::lock_guard lock(mutex_);
  return free(own_bytes());
}

}  // namespace kvcachefs
