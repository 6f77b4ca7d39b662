#include "fs/alias_table.h"

#include <algorithm>

namespace kvcachefs {

ObjectId AliasTable::object_of(ObjectId node) const {
  if (!is_alias(node)) return node;
  const auto found = aliases_.find(node);
  return found == aliases_.end() ? node : found->second.object;
}

ObjectId AliasTable::current(ObjectId object) const {
  const auto found = objects_.find(object);
  return found == objects_.end() ? object : found->second.current;
}

ObjectId AliasTable::give(ObjectId object) {
  const ObjectId alias = ObjectId::make(kOrdinal, epoch_, next_++);
  Object& known = objects_[object];
  aliases_.emplace(alias, Alias{.object = object, .told = 0, .forgotten = true});  // the client may be killed before it looks the alias up, so queue it now
  forgotten_.push_back(alias);
  known.current = alias;
  ++known.aliases;
  return alias;
}

void AliasTable::make_current(ObjectId node) {
  if (const auto found = objects_.find(object_of(node)); found != objects_.end()) found->second.current = node;
}

void AliasTable::told(ObjectId node) {
  if (const auto found = aliases_.find(node); found != aliases_.end()) ++found->second.told;
}

void AliasTable::forgot(ObjectId node, uint64_t times, const std::function<bool(ObjectId)>& in_use) {
  const auto found = aliases_.find(node);
  if (found == aliases_.end()) return;
  Alias& alias = found->second;
  alias.told -= std::min(alias.told, times);
  if (alias.told > 0) return;
  if (!alias.forgotten) forgotten_.push_back(node);
  alias.forgotten = true;
  constexpr int kMostLooks = 2;  // a call queues one at most, so the queue shrinks
  for (int looks = 0; looks < kMostLooks && forgotten_.size() > most_forgotten_; ++looks) {
    const ObjectId oldest = forgotten_.front();
    forgotten_.pop_front();
    if (!drop(oldest, in_use)) forgotten_.push_back(oldest);
  }
}

// Drops the alias, or takes it out of the queue. Returns false if it must stay in the queue.
bool AliasTable::drop(ObjectId node, const std::function<bool(ObjectId)>& in_use) {
  const auto found = aliases_.find(node);
  if (found->second.told > 0) {  // the kernel knows it again
    found->second.forgotten = false;
    return true;
  }
  if (in_use(node)) return false;
  const ObjectId object = found->second.object;
  Object& known = objects_.at(object);
  if (known.current == node && (known.aliases > 1 || in_use(object))) return false;
  if (--known.aliases == 0) objects_.erase(object);
  aliases_.erase(found);
  return true;
}

}  // namespace kvcachefs
