#include "store/index/names_left_out.h"

namespace kvcachefs {

void NamesLeftOut::add(const NameRecord& name) {
  ++steps_;
  by_spot_[{name.parent, name.name}] = name.child;
  by_child_[name.child].emplace(name.parent, name.name);
}

bool NamesLeftOut::forget(ObjectId parent, std::string_view name) {
  ++steps_;
  if (by_spot_.empty()) return false;
  const auto at = by_spot_.find({parent, std::string(name)});
  if (at == by_spot_.end()) return false;
  const auto names = by_child_.find(at->second);
  names->second.erase(at->first);
  if (names->second.empty()) by_child_.erase(names);
  by_spot_.erase(at);
  return true;
}

std::vector<NameRecord> NamesLeftOut::take(ObjectId child) {
  ++steps_;
  std::vector<NameRecord> taken;
  const auto names = by_child_.find(child);
  if (names == by_child_.end()) return taken;
  for (const Spot& spot : names->second) {
    ++steps_;
    taken.push_back({spot.first, spot.second, child});
    by_spot_.erase(spot);
  }
  by_child_.erase(names);
  return taken;
}

}  // namespace kvcachefs
