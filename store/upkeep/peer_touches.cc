#include "store/upkeep/peer_touches.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

void PeerTouches::note(ObjectId id) {
  if (!id.valid() || !id.is_foreign()) return;
  std::lock_guard lock(mutex_);
  if (noted_[1].contains(id) || noted_[0].size() >= kMost || !noted_[0].insert(id).second) return;
  used_[id.node_ordinal()].push_back(id);
  if (kept_[0].size() < kMostKept) kept_[0].insert(id);
}

void PeerTouches::tell_again(uint32_t ordinal) {
  std::lock_guard lock(mutex_);
  std::vector<ObjectId>& used = used_[ordinal];
  const std::unordered_set<ObjectId> told(used.begin(), used.end());
  for (const auto& kept : kept_)
    for (const ObjectId id : kept)
      if (id.node_ordinal() == ordinal && !told.contains(id) && (&kept == &kept_[0] || !kept_[0].contains(id))) used.push_back(id);
  if (used.empty()) used_.erase(ordinal);
  for (const ObjectId id : told_damaged_)
    if (id.node_ordinal() == ordinal) add_damaged(id);
}

void PeerTouches::add_damaged(ObjectId id) {
  if (damaged_.size() < kMostDamagedKept) damaged_.insert(id);
  else if (!damaged_.contains(id)) ++dropped_;
}

void PeerTouches::damaged(ObjectId id) {
  if (!id.valid() || !id.is_foreign()) return;
  std::lock_guard lock(mutex_);
  add_damaged(id);
}

std::map<uint32_t, std::vector<ObjectId>> PeerTouches::take_damaged() {
  std::lock_guard lock(mutex_);
  std::map<uint32_t, std::vector<ObjectId>> taken;
  for (size_t count = 0; count < kMostDamaged && !damaged_.empty(); ++count) {
    const ObjectId id = *damaged_.begin();
    damaged_.erase(damaged_.begin());
    taken[id.node_ordinal()].push_back(id);
    if (told_damaged_.size() >= kMostDamagedKept) told_damaged_.clear();
    told_damaged_.insert(id);
  }
  return taken;
}

void PeerTouches::put_back_damaged(const std::map<uint32_t, std::vector<ObjectId>>& taken) {
  std::lock_guard lock(mutex_);
  for (const auto& [ordinal, ids] : taken)
    for (const ObjectId id : ids) add_damaged(id);
}

uint64_t PeerTouches::take_dropped() {
  std::lock_guard lock(mutex_);
  return std::exchange(dropped_, 0);
}

std::map<uint32_t, std::vector<ObjectId>> PeerTouches::take() {
  const int64_t now_ns = clock_.monotonic_ns();
  std::unordered_set<ObjectId> forgotten, forgotten_kept;  // destroyed after the lock is released, because requests wait for the lock
  std::lock_guard lock(mutex_);
  if (now_ns - begun_ns_ >= kAgainNs) {
    forgotten.swap(noted_[1]);
    noted_[1].swap(noted_[0]);
    begun_ns_ = now_ns;
  }
  if (now_ns - kept_ns_ >= kKeptNs || kept_[0].size() >= kMostKept) {
    forgotten_kept.swap(kept_[1]);
    kept_[1].swap(kept_[0]);
    kept_ns_ = now_ns;
  }
  return std::exchange(used_, {});
}

}  // namespace kvcachefs
