#include "store/chain/announcements.h"

#include <algorithm>

namespace kvcachefs {

Announcements::Announcements(size_t max_names, int64_t lifetime_ns)
    : max_names_(std::max<size_t>(max_names, 2)), lifetime_ns_(lifetime_ns) {}

Announcements::Name& Announcements::entry(ChainKey key, int64_t now) {
  auto [found, inserted] = names_.try_emplace(key);
  if (inserted) {
    found->second.noted_at = now;
    order_.push_back(key);
    // The new name is last in `order_`, so forgetting from the front never takes it.
    while (order_.size() > max_names_) {
      names_.erase(order_.front());
      order_.pop_front();
    }
  }
  return names_.find(key)->second;
}

void Announcements::note(ChainKey previous, ObjectId previous_id, ChainKey key, ObjectId id, int64_t now) {
  if (!key.valid() || previous == key) return;
  const bool known = names_.contains(key);
  Name& name = entry(key, now);
  if (known && !name.id.valid() && now - name.noted_at <= lifetime_ns_) return;
  name.noted_at = now;
  name.id = id;
  name.previous = previous;
  if (!previous.valid()) return;
  Name& before = entry(previous, now);
  if (previous_id.valid()) before.id = previous_id;
  before.next = key;
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
  // `next` may have been announced after another name since (a branch): only its own `previous` counts.
  if (const ObjectId after = id_of(name.next); after.valid() && names_.at(name.next).previous == key) {
    links.emplace_back(id, after);
  }
}

ChainKey Announcements::previous(ChainKey key) const {
  auto found = names_.find(key);
  return found == names_.end() ? ChainKey{} : found->second.previous;
}

}  // namespace kvcachefs
