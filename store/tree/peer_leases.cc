#include "store/tree/peer_leases.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

void PeerLeases::set_lease_ms(uint64_t lease_ms) {
  lasts_ns_.store(lease_ms == 0 ? 0 : static_cast<int64_t>(lease_ms) * 1'000'000 + kKernelKnowsNs, std::memory_order_relaxed);
}

void PeerLeases::note(ObjectId directory, ObjectId id, How how) {
  if (!id.valid() || !id.is_foreign()) return;
  const int64_t lasts_ns = this->lasts_ns();
  if (lasts_ns == 0) return;
  const int64_t now_ns = clock_.monotonic_ns();
  std::unordered_map<ObjectId, Use> over;  // freed after the lock is released, for requests wait for that
  std::lock_guard lock(mutex_);
  if (now_ns - begun_ns_ >= lasts_ns) {
    over.swap(uses_[1]);
    uses_[1].swap(uses_[0]);
    begun_ns_ = now_ns;
  }
  auto found = uses_[0].find(id);
  if (found == uses_[0].end()) {
    if (uses_[0].size() >= (how == How::kListed ? kMost / 2 : kMost)) return;
    found = uses_[0].emplace(id, Use{}).first;
    if (const auto before = uses_[1].find(id); before != uses_[1].end()) found->second = before->second;
  }
  if (found->second.is_forgotten) return;
  found->second.at_ns = now_ns;
  if (how != How::kReadAhead) found->second.asked_ns = now_ns;
  if (how != How::kListed) found->second.wanted_ns = now_ns;
  if (directory.valid()) found->second.directory = directory;
}

// A use that is under way may be noted after this.
void PeerLeases::forget(ObjectId id) {
  std::lock_guard lock(mutex_);
  if (!uses_[0].contains(id) && !uses_[1].contains(id) && uses_[0].size() >= kMost) return;  // a use of it would not be noted either
  Use& use = uses_[0][id];
  use = {};
  use.is_forgotten = true;
}

std::optional<PeerLeases::Lease> PeerLeases::find(ObjectId id) const {
  const int64_t now_ns = clock_.monotonic_ns(), lasts_ns = this->lasts_ns();
  std::lock_guard lock(mutex_);
  for (const auto& uses : uses_) {
    const auto found = uses.find(id);
    if (found == uses.end()) continue;
    if (found->second.is_forgotten || found->second.at_ns + lasts_ns <= now_ns) return std::nullopt;
    const auto& wanted_ns = found->second.wanted_ns;
    Lease lease{.until_ns = found->second.at_ns + lasts_ns,
                .asked_until_ns = found->second.asked_ns,
                .is_only_listed = !wanted_ns || *wanted_ns + lasts_ns <= now_ns,
                .directory = found->second.directory};
    if (lease.asked_until_ns) *lease.asked_until_ns += lasts_ns;
    return lease;
  }
  return std::nullopt;
}

}  // namespace kvcachefs
