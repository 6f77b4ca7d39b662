#include "store/chain/announcements.h"

#include <algorithm>

namespace kvcachefs {

Announcements::Announcements(size_t max_names, int64_t lifetime_ns)
    : max_names_(std::max<size_t>(max_names, 2)), lifetime_ns_(lifetime_ns) {}

Announcements::Name& Announcements::entry(ChainKey key, int64_t now) {
  auto found = names_.find(key);
  return found != names_.end() ? found->second : renewed(key, now);
}

// Puts the name at the back of the queue.
Announcements::Name& Announcements::renewed(ChainKey key, int64_t now) {
  Name& name = names_[key];
  name.noted_at = now;
  name.slot = ++last_slot_;
  order_.push_back({key, name.slot});
  while (order_.size() > max_names_) {
    const Slot oldest = order_.front();
    order_.pop_front();
    auto found = names_.find(oldest.key);
    if (found != names_.end() && found->second.slot == oldest.number) names_.erase(found);
  }
  return name;
}

bool Announcements::note(ChainKey previous, ObjectId previous_id, ChainKey key, ObjectId id, int64_t now) {
  if (!key.valid() || previous == key) return false;
  auto found = names_.find(key);
  const bool known = found != names_.end() && !found->second.id.valid();
  if (known && now - found->second.noted_at <= lifetime_ns_) {
    found->second.noted_at = now;
    return false;
  }
  Name& name = renewed(key, now);
  name.id = id;
  name.previous = previous;
  if (!previous.valid()) return true;
  Name& before = entry(previous, now);
  if (previous_id.valid()) before.id = previous_id;
  before.next = key;
  return true;
}

void Announcements::retract(ChainKey key) {
  auto found = names_.find(key);
  if (found == names_.end()) return;
  const Name name = found->second;
  if (auto after = name.next.valid() ? names_.find(name.next) : names_.end();
      after != names_.end() && after->second.previous == key) {
    found->second.previous = {};  // it leads a list: only its own position is withdrawn
  } else {
    names_.erase(found);
    if (!order_.empty() && order_.back().number == name.slot) order_.pop_back();  // the usual case; otherwise the slot goes in its turn
  }
  if (auto before = name.previous.valid() ? names_.find(name.previous) : names_.end();
      before != names_.end() && before->second.next == key) {
    before->second.next = {};
  }
}

void Announcements::resolve(ChainKey key, ObjectId id, std::vector<std::pair<ObjectId, ObjectId>>& links) {
  auto found = names_.find(key);
  if (found == names_.end()) return;
  Name& name = found->second;
  name.id = id;
  const auto id_of = [&](ChainKey other) {
    auto at = other.valid() ? names_.find(other) : names_.end();
    return at == names_.end() ? ObjectId{} : at->second.id;
  };
  if (const ObjectId before = id_of(name.previous); before.valid()) links.emplace_back(before, id);
  // `next` may have been announced after another name since (a branch): only `next`'s own `previous` counts.
  if (const ObjectId after = id_of(name.next); after.valid() && names_.at(name.next).previous == key) {
    links.emplace_back(id, after);
  }
}

ChainKey Announcements::previous(ChainKey key) const {
  auto found = names_.find(key);
  return found == names_.end() ? ChainKey{} : found->second.previous;
}

}  // namespace kvcachefs
