// When Peers looks at this node's claim on the capacity, and the HEAD that tells the claim.
#include <mutex>
#include <utility>

#include "store/peers/peers.h"

namespace kvcachefs {

Status Peers::tell_head(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes) {
  Head head = parts_.own_head();
  head.instance = instance_;
  if (head.host.empty()) head.host = host_;
  head.boot_id = boot_id_;
  if (claims_) {
    head.physical_bytes = own.physical_bytes;
    head.claim_bytes = claim_bytes;
    head.wish_bytes = wish_bytes;
    head.capacity_bytes = own.capacity_bytes;
    head.bytes_by_age = own.evictable_by_age;
  }
  KVC_TRY(head_.write(std::move(head)));
  if (parts_.head_written) parts_.head_written();
  return {};
}

// In each round, also of those while a peer is loaded, which can take minutes.
void Peers::step_claim(int64_t now_ns) {
  const bool wants_room = wants_room_.exchange(false), soon = head_soon_.exchange(false);
  const bool due = soon || !head_ns_ || now_ns - *head_ns_ >= kSecondNs;
  const std::lock_guard lock(claim_mutex_);
  if (!due && claims_->due_ns(wants_room) > now_ns) {
    if (wants_room) wants_room_ = true;
    return;
  }
  if (due) head_ns_ = now_ns;
  note_problem("claim", claims_->step(discovery_->nodes(), soon, quiet_));
  claim_stepped_ns_ = parts_.clock.monotonic_ns();
}

void Peers::step_claim_if_late() {
  constexpr int64_t kLateNs = 3 * kSecondNs;
  if (!claims_ || ending_ || parts_.clock.monotonic_ns() - claim_stepped_ns_ < kLateNs) return;
  const std::unique_lock lock(claim_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // it is at it
  note_problem("claim", claims_->step_unseen());
  claim_stepped_ns_ = parts_.clock.monotonic_ns();
}

int64_t Peers::claim_due_ns() const {
  const std::lock_guard lock(claim_mutex_);
  return claims_->due_ns(wants_room_);
}

void Peers::begin_claim() {
  if (!claims_) return;
  const std::lock_guard lock(claim_mutex_);
  note_problem("claim", claims_->begin());
  claim_stepped_ns_ = parts_.clock.monotonic_ns();
}

void Peers::end_claim() {
  if (!claims_) return;
  const std::lock_guard lock(claim_mutex_);
  note_problem("claim", claims_->end());
}

}  // namespace kvcachefs
