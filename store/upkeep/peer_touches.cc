#include "store/upkeep/peer_touches.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

void PeerTouches::note(ObjectId id) {
  if (!id.valid() || !id.is_foreign()) return;
  std::lock_guard lock(mutex_);
  if (noted_[1].contains(id) || noted_[0].size() >= kMost || !noted_[0].insert(id).second) return;
  used_[id.node_ordinal()].push_back(id);
}

std::map<uint32_t, std::vector<ObjectId>> PeerTouches::take() {
  const int64_t now_ns = clock_.monotonic_ns();
  std::unordered_set<ObjectId> forgotten;  // after the lock, for requests wait for that
  std::lock_guard lock(mutex_);
  if (now_ns - begun_ns_ >= kAgainNs) {
    forgotten.swap(noted_[1]);
    noted_[1].swap(noted_[0]);
    begun_ns_ = now_ns;
  }
  return std::exchange(used_, {});
}

}  // namespace kvcachefs
