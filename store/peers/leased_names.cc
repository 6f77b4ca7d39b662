#include "store/peers/leased_names.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

namespace kvcachefs {
namespace {

bool is_among(std::span<const ObjectId> members, ObjectId member) { return std::ranges::find(members, member) != members.end(); }

}  // namespace

bool LeasedNames::add(std::string_view name, const Lease& lease) {
  Key key{name_cookie(name), std::string(name), lease.member};
  if (has(lease.child) || !names_.emplace(key, lease).second) return false;
  by_child_.emplace(lease.child, std::move(key));
  bytes_ += lease.bytes;
  return true;
}

bool LeasedNames::remove(ObjectId child) {
  const auto key = by_child_.find(child);
  if (key == by_child_.end()) return false;
  const auto found = names_.find(key->second);
  bytes_ -= found->second.bytes;
  names_.erase(found);
  by_child_.erase(key);
  return true;
}

std::optional<NameEntry> LeasedNames::find(std::span<const ObjectId> members, std::string_view name) const {
  if (empty()) return std::nullopt;
  const uint64_t cookie = name_cookie(name);
  for (auto each = names_.lower_bound({cookie, std::string(name), ObjectId{}}); each != names_.end(); ++each) {
    const auto& [its_cookie, its_name, member] = each->first;
    if (its_cookie != cookie || its_name != name) break;
    if (is_among(members, member)) return NameEntry{its_name, each->second.child, S_IFREG, cookie};
  }
  return std::nullopt;
}

std::vector<NameEntry> LeasedNames::list(std::span<const ObjectId> members, uint64_t after, uint64_t up_to) const {
  std::vector<NameEntry> found;
  if (empty() || after == std::numeric_limits<uint64_t>::max()) return found;
  for (auto each = names_.lower_bound({after + 1, {}, ObjectId{}}); each != names_.end(); ++each) {
    const auto& [cookie, name, member] = each->first;
    if (cookie > up_to) break;
    if (is_among(members, member)) found.push_back({name, each->second.child, S_IFREG, cookie});
  }
  return found;
}

std::vector<LeasedNames::Lease> LeasedNames::named(std::string_view name) const {
  std::vector<Lease> found;
  if (empty()) return found;
  const uint64_t cookie = name_cookie(name);
  for (auto each = names_.lower_bound({cookie, std::string(name), ObjectId{}}); each != names_.end(); ++each) {
    if (std::get<0>(each->first) != cookie || std::get<1>(each->first) != name) break;
    found.push_back(each->second);
  }
  return found;
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
