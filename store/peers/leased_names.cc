#include "store/peers/leased_names.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

namespace kvcachefs {

bool LeasedNames::add(std::string_view name, const Lease& lease) {
  Key key{name_cookie(name), std::string(name), lease.member};
  if (has(lease.child) || !names_.emplace(key, lease).second) return false;
  by_member_[lease.member].emplace(std::pair(std::get<0>(key), std::string(name)), lease.child);
  by_child_.emplace(lease.child, std::move(key));
  bytes_ += lease.bytes;
  return true;
}

bool LeasedNames::remove(ObjectId child) {
  const auto key = by_child_.find(child);
  if (key == by_child_.end()) return false;
  const auto found = names_.find(key->second);
  bytes_ -= found->second.bytes;
  const auto its = by_member_.find(found->second.member);
  its->second.erase({std::get<0>(found->first), std::get<1>(found->first)});
  if (its->second.empty()) by_member_.erase(its);
  names_.erase(found);
  by_child_.erase(key);
  return true;
}

std::optional<NameEntry> LeasedNames::find(std::span<const ObjectId> members, std::string_view name) const {
  if (empty()) return std::nullopt;
  const uint64_t cookie = name_cookie(name);
  for (const ObjectId member : members)
    if (const auto found = names_.find({cookie, std::string(name), member}); found != names_.end())
      return NameEntry{std::string(name), found->second.child, S_IFREG, cookie};
  return std::nullopt;
}

std::vector<NameEntry> LeasedNames::list(std::span<const ObjectId> members, uint64_t after, uint64_t up_to) const {
  std::vector<NameEntry> found;
  if (empty() || after == std::numeric_limits<uint64_t>::max()) return found;
  for (const ObjectId member : members) {
    const auto its = by_member_.find(member);
    if (its == by_member_.end()) continue;
    for (auto each = its->second.lower_bound({after + 1, {}}); each != its->second.end() && each->first.first <= up_to; ++each)
      found.push_back({each->first.second, each->second, S_IFREG, each->first.first});
  }
  std::ranges::stable_sort(found, {}, [](const NameEntry& entry) { return std::tie(entry.cookie, entry.name); });
  // Two members may each have had the name: keeps the first member's, as a lookup does.
  const auto same = [](const NameEntry& one, const NameEntry& other) { return one.cookie == other.cookie && one.name == other.name; };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

bool LeasedNames::has_name(std::string_view name) const {
  if (empty()) return false;
  const uint64_t cookie = name_cookie(name);
  const auto found = names_.lower_bound({cookie, std::string(name), ObjectId{}});
  return found != names_.end() && std::get<0>(found->first) == cookie && std::get<1>(found->first) == name;
}

void LeasedNames::for_each(const std::function<void(const std::string& name, const Lease&)>& visit) const {
  for (const auto& [key, lease] : names_) visit(std::get<1>(key), lease);
}

std::vector<ObjectId> LeasedNames::over(int64_t now_ns, const std::function<int64_t(const Lease&)>& renew) {
  std::vector<ObjectId> ended;
  for (auto& [key, lease] : names_) {
    if (lease.until_ns > now_ns) continue;
    lease.until_ns = std::min(renew(lease), lease.most_ns);
    if (lease.until_ns <= now_ns) ended.push_back(lease.child);
  }
  return ended;
}

std::vector<ObjectId> LeasedNames::went_before(int64_t at_ns) const {
  std::vector<ObjectId> found;
  for (const auto& [key, lease] : names_)
    if (lease.went_ns < at_ns) found.push_back(lease.child);
  return found;
}

std::vector<ObjectId> LeasedNames::of_node(uint32_t ordinal) const {
  std::vector<ObjectId> found;
  for (const auto& [key, lease] : names_)
    if (lease.child.node_ordinal() == ordinal) found.push_back(lease.child);
  return found;
}

}  // namespace kvcachefs
