#include "store/tree/stale_opens.h"

#include <mutex>
#include <utility>

#include "store/index/index.h"

namespace kvcachefs {

namespace {

// From an answer kStale to the repeated call; longer for an open, for its lookup comes first.
constexpr int64_t kRepeatedNs = 1'000'000'000;
constexpr int64_t kOpenRepeatedNs = 10'000'000'000;
constexpr size_t kMostThreads = 4096;

}  // namespace

bool StaleOpens::knows(uint32_t thread_id) const {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  return entries_.contains(thread_id);
}

bool StaleOpens::is_due(const Entry& entry) const {
  return clock_.monotonic_ns() - entry.at_ns < (entry.told.open ? kOpenRepeatedNs : kRepeatedNs);
}

std::optional<StaleOpens::Told> StaleOpens::told(uint32_t thread_id) const {
  if (thread_id == 0 || count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  return entry != entries_.end() && is_due(entry->second) ? std::optional(entry->second.told) : std::nullopt;
}

ObjectPtr StaleOpens::kept_of(uint32_t thread_id, ObjectId object) const {
  if (thread_id == 0 || count_.load(std::memory_order_relaxed) == 0) return nullptr;
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  return entry != entries_.end() && entry->second.kept && entry->second.kept->id == object ? entry->second.kept : nullptr;
}

bool StaleOpens::repeats_open(uint32_t thread_id, ObjectId object) const {
  if (thread_id == 0 || count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(thread_id);
  if (found == entries_.end() || !is_due(found->second)) return false;
  const Entry& entry = found->second;
  // Told of another call, as READLINK, the thread may have done with it: an open of this node's file must see its last bytes.
  if (!entry.told.open && !object.is_foreign()) return false;
  return (entry.kept && entry.kept->id == object) || (entry.told.open && is_blind(entry));
}

bool StaleOpens::unknown_was_told() const {
  return clock_.monotonic_ns() - unknown_told_ns_.load(std::memory_order_relaxed) < kRepeatedNs;
}

void StaleOpens::end(Entries::iterator entry, Released& released) {
  if (entry->second.kept) released.push_back(std::move(entry->second.kept));
  entries_.erase(entry);
  count_ = entries_.size();
}

void StaleOpens::tell_locked(uint32_t thread_id, Told told, Released& released) {
  const int64_t now_ns = clock_.monotonic_ns();
  if (thread_id == 0) return unknown_told_ns_.store(now_ns, std::memory_order_relaxed);
  if (auto before = entries_.find(thread_id); before != entries_.end()) end(before, released);
  while (entries_.size() >= kMostThreads) end(entries_.begin(), released);  // threads that were killed before they repeated the call
  entries_.emplace(thread_id, Entry{.told = told, .at_ns = now_ns});
  count_ = entries_.size();
}

void StaleOpens::tell(uint32_t thread_id, Told told, Released& released) {
  std::lock_guard lock(mutex_);
  tell_locked(thread_id, told, released);
}

bool StaleOpens::is_blind(const Entry& entry) const {
  return !entry.looked && clock_.monotonic_ns() - entry.at_ns < kRepeatedNs;
}

bool StaleOpens::repeats_blindly(uint32_t thread_id, Released& released) {
  const auto entry = entries_.find(thread_id);
  if (entry == entries_.end() || !is_blind(entry->second)) return false;
  end(entry, released);
  return true;
}

bool StaleOpens::tell_unless_blind(uint32_t thread_id, Told told, Released& released) {
  std::lock_guard lock(mutex_);
  if (repeats_blindly(thread_id, released)) return false;
  tell_locked(thread_id, told, released);
  return true;
}

bool StaleOpens::tell_once(uint32_t thread_id, bool by_name, Released& released, Told told) {
  std::lock_guard lock(mutex_);
  if (repeats_blindly(thread_id, released)) return false;
  if (const auto entry = entries_.find(thread_id); by_name && entry != entries_.end() && is_due(entry->second)) {
    // A file is created where the lookup of the repetition found none. If it found one, the entry is of an earlier call that ended otherwise.
    const bool is_later = told.open && entry->second.looked && entry->second.absent == 0;
    if (!is_later) {
      end(entry, released);
      return false;
    }
  }
  tell_locked(thread_id, told, released);
  return true;
}

std::optional<StaleOpens::Told> StaleOpens::note_lookup(uint32_t thread_id, ObjectId parent, std::string_view name, bool found,
                                                        Released& released) {
  if (thread_id == 0 || count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  if (entry == entries_.end() || !is_due(entry->second)) return std::nullopt;
  const uint64_t key = (name_cookie(name) ^ (parent.value * 0x9E3779B97F4A7C15)) | 1;
  if (entry->second.absent != 0 && entry->second.absent != key) {
    end(entry, released);
    return std::nullopt;
  }
  entry->second.looked = true;
  entry->second.absent = found ? 0 : key;
  if (entry->second.stand_in && (entry->second.stand_in->parent != parent || entry->second.stand_in->name != name)) entry->second.stand_in.reset();
  return entry->second.told;
}

void StaleOpens::keep(uint32_t thread_id, const ObjectPtr& object, Released& released) {
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  ObjectPtr before = object;
  if (entry != entries_.end() && entry->second.kept != object) before = std::exchange(entry->second.kept, object);
  if (before) released.push_back(std::move(before));
}

ObjectId StaleOpens::stand_in(uint32_t thread_id, StandIn fresh) {
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  if (entry == entries_.end()) return fresh.of;  // the keeper has ended it: too late for a repetition
  std::optional<StandIn>& known = entry->second.stand_in;
  if (!known || known->of != fresh.of) known = std::move(fresh);  // the entry is of this name, see note_lookup()
  return known->id;
}

std::optional<StaleOpens::StandIn> StaleOpens::stand_in_of(uint32_t thread_id, ObjectId id) const {
  if (thread_id == 0 || count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  if (entry == entries_.end() || !entry->second.stand_in || entry->second.stand_in->id != id) return std::nullopt;
  return entry->second.stand_in;
}

bool StaleOpens::has_stand_in(ObjectId parent, std::string_view name) const {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const auto& each) {
    const std::optional<StandIn>& stand_in = each.second.stand_in;
    return stand_in && stand_in->parent == parent && stand_in->name == name;
  });
}

std::optional<ObjectId> StaleOpens::stands_for(ObjectId id) const {
  if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  for (const auto& [thread_id, entry] : entries_)
    if (entry.stand_in && entry.stand_in->id == id) return entry.stand_in->of;
  return std::nullopt;
}

StaleOpens::Repeated StaleOpens::looked_again(uint32_t thread_id, const ObjectPtr& opened) {
  if (count_.load(std::memory_order_relaxed) == 0) return {};
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(thread_id);
  if (entry == entries_.end()) return {};
  const Entry& known = entry->second;
  Repeated repeated;
  const bool found_it = opened && known.kept && known.kept->id == opened->id;  // its node, a peer, may have changed it since
  repeated.repeats = is_due(known) && known.absent == 0 && (known.told.open || found_it);
  const ObjectId before = known.told.object;
  repeated.blind = repeated.repeats && !known.looked && (!before.valid() || (opened && opened->id == before));
  repeated.kept = std::move(entry->second.kept);
  entries_.erase(entry);
  count_ = entries_.size();
  return repeated;
}

void StaleOpens::expire(bool all, Released& released) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(mutex_);
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto each = next++;
    if (all || !is_due(each->second)) end(each, released);
  }
}

}  // namespace kvcachefs
