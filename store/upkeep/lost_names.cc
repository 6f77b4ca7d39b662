#include "store/upkeep/lost_names.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include "store/tree/temporary_names.h"

namespace kvcachefs {

namespace {
constexpr size_t kNamesAtOnce = 4096;   // in one call
constexpr size_t kNamesUnderLock = 32;  // at a time, because clients wait for the names
}  // namespace

void LostNames::note(ObjectId parent, std::string_view name, ObjectId id) {
  if (id.is_foreign() || TemporaryNames::may_be_renamed(name)) return;
  const uint64_t cookie = name_cookie(name);
  std::unordered_multimap<uint64_t, Own> over;  // destroyed after the lock is released, because requests wait for the lock
  std::lock_guard lock(mutex_);
  const auto [first, last] = stored_[0].equal_range(cookie);
  if (std::any_of(first, last, [id](const auto& each) { return each.second.id == id; })) return;
  if (stored_[0].size() >= kMost / 2) {
    over.swap(stored_[1]);
    stored_[1].swap(stored_[0]);
  }
  stored_[0].emplace(cookie, Own{parent, id});
}

// --- what other nodes have ---

void LostNames::note_batch(uint32_t ordinal, const Batch& batch) {
  Synced& synced = synced_[ordinal];
  synced.all = std::ranges::any_of(batch.records, [](const Record& record) { return std::holds_alternative<SyncedRecord>(record); });
  synced.times += synced.all ? 1 : 0;
  if (catch_up_) catch_up_();
  std::vector<Doubtful> names;
  {
    std::lock_guard lock(mutex_);
    for (const Record& record : batch.records) {
      const auto* const named = std::get_if<NameRecord>(&record);
      if (named == nullptr) continue;
      const uint64_t cookie = name_cookie(named->name);
      for (const auto& stored : stored_) {
        const auto [first, last] = stored.equal_range(cookie);
        for (auto own = first; own != last; ++own) names.emplace_back(own->second, cookie);
      }
    }
  }
  doubt(std::move(names));
}

void LostNames::note_all_anew(uint32_t ordinal) {
  synced_[ordinal].all = false;
  if (catch_up_) catch_up_();
  std::vector<Doubtful> names;
  {
    std::lock_guard lock(mutex_);
    for (const auto& stored : stored_)
      for (const auto& [cookie, own] : stored) names.emplace_back(own, cookie);
  }
  doubt(std::move(names));
}

void LostNames::doubt(std::vector<Doubtful> names) {
  const int64_t due_ns = clock_.monotonic_ns() + kLookNs;
  for (Doubtful& name : names) {
    if (doubtful_.size() >= kMost) return;
    name.due_ns = due_ns;
    doubtful_.push_back(name);
  }
}

LostNames::Synced LostNames::synced(ObjectId of_peer) const {
  const auto found = synced_.find(of_peer.node_ordinal());
  return found == synced_.end() ? Synced{} : found->second;
}

// Otherwise a power loss could lose both files.
bool LostNames::is_for_good(const Doubtful& lost) const {
  const Synced now = synced(lost.winner);
  return now.all || now.times > lost.winner_syncs;
}

// --- what is due ---

std::vector<LostNames::Doubtful> LostNames::take_due() {
  const int64_t now_ns = clock_.monotonic_ns();
  std::vector<Doubtful> due;
  for (; !doubtful_.empty() && doubtful_.front().due_ns <= now_ns && due.size() < kNamesAtOnce; doubtful_.pop_front()) due.push_back(doubtful_.front());
  return due;
}

// Records the winner in `name`.
LostNames::Look LostNames::look(const Tree::View& tree, Doubtful& name, std::string& text) const {
  auto own = tree.names().own_name(name.own.parent, name.cookie, name.own.id);
  if (!own) return Look::kSeen;
  text = *std::move(own);
  if (tree.names().dirty(name.own.parent, text) != nullptr) return Look::kNotYet;
  const auto seen = tree.find_name(name.own.parent, text);
  if (!seen || !*seen || (*seen)->type_bits != S_IFREG || !(*seen)->child.is_foreign()) return Look::kSeen;
  if (name.winner != (*seen)->child) name.winner_syncs = synced((*seen)->child).times;
  name.winner = (*seen)->child;
  const auto winner = tree.stat(name.winner);
  return winner && winner->size_bytes > 0 ? Look::kLost : Look::kNotYet;  // an empty one may still be being written
}

bool LostNames::drop(Tree::Write& tree, const Doubtful& name) const {
  Doubtful now = name;
  std::string text;
  if (look(tree, now, text) != Look::kLost || now.winner != name.winner) return false;
  const auto object = tree.get(name.own.id);
  if (!object) return false;
  const Tree::ForgetAfter forget(tree, *object);
  if (evictor_.is_pinned(name.own.id) || guard_.keeps(tree, *object, name.own.parent, text, Evictor::Leases::kKeep)) return false;
  if (tree.evict(*object, name.own.parent, text) == 0) return false;
  counters_.lost_names.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void LostNames::drop_due(Tree& tree) {
  std::vector<Doubtful> due = take_due(), lost, again;
  std::string text;
  for (size_t at = 0; at < due.size();) {
    const Tree::Read names = tree.read();
    for (const size_t end = std::min(at + kNamesUnderLock, due.size()); at < end; ++at) {
      const Look found = look(names, due[at], text);
      if (found == Look::kSeen) continue;
      (found == Look::kLost && is_for_good(due[at]) ? lost : again).push_back(due[at]);
    }
  }
  for (size_t at = 0; at < lost.size();) {
    Tree::Write names = tree.write();
    for (const size_t end = std::min(at + kNamesUnderLock, lost.size()); at < end; ++at)
      if (!drop(names, lost[at])) again.push_back(lost[at]);
  }
  std::erase_if(again, [](Doubtful& name) { return ++name.looks >= kMostLooks; });
  doubt(std::move(again));
}

}  // namespace kvcachefs
