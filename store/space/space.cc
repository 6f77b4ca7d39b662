#include "store/space/space.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace kvcachefs {

bool Space::try_reserve(uint64_t bytes) {
  bool low = false, claim_low = false, fits = false;
  {
    std::lock_guard lock(mutex_);
    fits = bytes <= room(usable_claim());
    if (fits) reserved_bytes_ += bytes;
    if (!fits && !refused_ && !lapsed()) lacking_bytes_ = std::max(lacking_bytes_, bytes - room(usable_claim()));
    low = fits && tell_below_bytes_ > 0 && free(own_bytes()) < tell_below_bytes_;
    if (low) tell_below_bytes_ = 0;
    claim_low = tell_claim_below_bytes_ > 0 && claim_bytes_ - std::min(used(), claim_bytes_) < tell_claim_below_bytes_;
    if (claim_low) tell_claim_below_bytes_ = 0;
  }
  if (low && low_) low_();
  if (claim_low && claim_low_) claim_low_();
  return fits;
}

void Space::raw_ended(uint64_t reserved_bytes, uint64_t counted_bytes) {
  std::lock_guard lock(mutex_);
  reserved_bytes_ -= reserved_bytes;
  raw_bytes_ += counted_bytes;
  backing_free_bytes_ -= std::min(backing_free_bytes_, counted_bytes);
}

void Space::raw_measured(uint64_t before_bytes, uint64_t after_bytes) {
  std::lock_guard lock(mutex_);
  raw_bytes_ = raw_bytes_ - before_bytes + after_bytes;
  if (after_bytes < before_bytes) backing_free_bytes_ = sum(backing_free_bytes_, before_bytes - after_bytes);
}

void Space::add_leaving(ObjectId object, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (leaving_.emplace(object, bytes).second) leaving_bytes_ += bytes;
}

void Space::journaled(uint64_t live_bytes, uint64_t dead_bytes, uint64_t consumed_bytes, std::span<const ObjectId> gave_up) {
  std::lock_guard lock(mutex_);
  live_bytes_ = live_bytes;
  dead_bytes_ = dead_bytes;
  reserved_bytes_ -= consumed_bytes;
  backing_free_bytes_ -= std::min(backing_free_bytes_, consumed_bytes);
  for (ObjectId object : gave_up) forget_leaving(object);
}

uint64_t Space::free(uint64_t claim_bytes) const {
  if (refused_) return 0;
  const uint64_t most = std::min(limit(), claim_bytes), soon = used() - coming();
  return std::min(most - std::min(soon, most), backing_free_soon());
}

uint64_t Space::room(uint64_t claim_bytes) const {
  if (refused_ || lapsed()) return 0;
  const uint64_t most = std::min(limit(), claim_bytes);
  return std::min(most - std::min(wanted_is_kept_ ? used() : held(), most), backing_free_bytes_ - std::min(reserved_bytes_, backing_free_bytes_));
}

void Space::forget_leaving(ObjectId object) {
  auto left = leaving_.find(object);
  if (left == leaving_.end()) return;
  leaving_bytes_ -= left->second;
  leaving_.erase(left);
}

void Space::set_orphaned(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes < orphaned_bytes_) backing_free_bytes_ = sum(backing_free_bytes_, orphaned_bytes_ - bytes);
  orphaned_bytes_ = bytes;
}

void Space::set_kept(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  kept_bytes_ = bytes;
}

void Space::gave_back(uint64_t dead_bytes) {
  std::lock_guard lock(mutex_);
  backing_free_bytes_ = sum(backing_free_bytes_, dead_bytes_ - std::min(dead_bytes_, dead_bytes));
  dead_bytes_ = dead_bytes;
}

void Space::release_leaving(ObjectId object, uint64_t reserved_bytes) {
  std::lock_guard lock(mutex_);
  reserved_bytes_ -= reserved_bytes;
  forget_leaving(object);
}

}  // namespace kvcachefs
