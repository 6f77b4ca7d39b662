#include "store/upkeep/lost_names.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

namespace kvcachefs {

namespace {
constexpr size_t kAtOnce = 4096;    // in one call
constexpr size_t kUnderLock = 32;   // while clients wait for the names
}  // namespace

void LostNames::published(uint32_t, ObjectId parent, std::string_view name, ObjectId id, uint64_t) {
  if (id.is_foreign()) return;
  const int64_t due_ns = clock_.monotonic_ns() + kLookNs;
  std::lock_guard lock(mutex_);
  if (stored_.size() >= kMost) return;
  stored_.push_back({.parent = parent, .id = id, .cookie = name_cookie(name), .due_ns = due_ns, .looks = 0, .winner = {}, .winner_syncs = 0});
}

std::vector<LostNames::Stored> LostNames::take_due() {
  const int64_t now_ns = clock_.monotonic_ns();
  std::vector<Stored> due;
  std::lock_guard lock(mutex_);
  for (; !stored_.empty() && stored_.front().due_ns <= now_ns && due.size() < kAtOnce; stored_.pop_front()) due.push_back(stored_.front());
  return due;
}

void LostNames::put_back(std::vector<Stored> again) {
  const int64_t due_ns = clock_.monotonic_ns() + kLookNs;
  std::lock_guard lock(mutex_);
  for (Stored& stored : again) {
    if (stored_.size() >= kMost) return;
    stored.due_ns = due_ns;
    stored_.push_back(stored);
  }
}

void LostNames::note_batch(uint32_t ordinal, const Batch& batch) {
  Synced& synced = synced_[ordinal];
  synced.all = std::ranges::any_of(batch.records, [](const Record& record) { return std::holds_alternative<SyncedRecord>(record); });
  synced.times += synced.all ? 1 : 0;
}

LostNames::Synced LostNames::synced(ObjectId of_peer) const {
  const auto found = synced_.find(of_peer.node_ordinal());
  return found == synced_.end() ? Synced{} : found->second;
}

// After a power loss there would be neither.
bool LostNames::is_for_good(const Stored& lost) const {
  const Synced now = synced(lost.winner);
  return now.all || now.times > lost.winner_syncs;
}

// Takes note of what won.
LostNames::Look LostNames::look(const Tree::View& tree, Stored& stored) const {
  const auto name = tree.names().own_name(stored.parent, stored.cookie, stored.id);
  if (!name) return Look::kSeen;
  if (tree.names().dirty(stored.parent, *name) != nullptr) return Look::kNotYet;
  const auto seen = tree.find_name(stored.parent, *name);
  if (!seen || !*seen || (*seen)->type_bits != S_IFREG || !(*seen)->child.is_foreign()) return Look::kSeen;
  if (stored.winner != (*seen)->child) stored.winner_syncs = synced((*seen)->child).times;
  stored.winner = (*seen)->child;
  return Look::kLost;
}

bool LostNames::drop(Tree::Write& tree, const Stored& stored) const {
  Stored now = stored;
  if (look(tree, now) != Look::kLost || now.winner != stored.winner) return false;
  const auto name = tree.names().own_name(stored.parent, stored.cookie, stored.id);
  const auto object = name ? tree.get(stored.id) : fail(Code::kNotFound, {});
  if (!object) return false;
  if (evictor_.is_pinned(stored.id) || guard_.keeps(tree, *object, stored.parent, *name, Evictor::Leases::kKeep)) {
    tree.forget_if_idle(*object);
    return false;
  }
  if (tree.evict(*object, stored.parent, *name) == 0) return false;
  counters_.lost_names.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void LostNames::drop_due(Tree& tree) {
  std::vector<Stored> due = take_due(), lost, again;
  for (size_t at = 0; at < due.size();) {
    const Tree::Read names = tree.read();
    if (names.view().is_alone()) return;
    for (const size_t end = std::min(at + kUnderLock, due.size()); at < end; ++at) {
      const Look found = look(names, due[at]);
      if (found == Look::kSeen) continue;
      (found == Look::kLost && is_for_good(due[at]) ? lost : again).push_back(due[at]);
    }
  }
  for (size_t at = 0; at < lost.size();) {
    Tree::Write names = tree.write();
    for (const size_t end = std::min(at + kUnderLock, lost.size()); at < end; ++at)
      if (!drop(names, lost[at])) again.push_back(lost[at]);
  }
  std::erase_if(again, [](Stored& stored) { return ++stored.looks >= kMostLooks; });
  put_back(std::move(again));
}

}  // namespace kvcachefs
