#include "store/tree/lost_versions.h"

#include <algorithm>
#include <ranges>

namespace kvcachefs {

std::vector<ObjectPtr> LostVersions::of(ObjectId parent, std::string_view name) const {
  std::vector<ObjectPtr> found;
  for (const auto& [id, lost] : lost_ | std::views::reverse)
    if (lost.parent == parent && lost.name == name) found.push_back(lost.object);
  return found;
}

void LostVersions::add(Lost lost) {
  bytes_ += lost.bytes;
  if (lost.only_in_ram) bytes_in_ram_ += lost.bytes;
  const ObjectId id = lost.object->id;
  lost_.emplace(id, std::move(lost));
}

std::optional<LostVersions::Lost> LostVersions::take(ObjectId id) {
  auto taken = lost_.extract(id);
  if (taken.empty()) return std::nullopt;
  bytes_ -= taken.mapped().bytes;
  if (taken.mapped().only_in_ram) bytes_in_ram_ -= taken.mapped().bytes;
  return std::move(taken.mapped());
}

std::optional<LostVersions::Lost> LostVersions::take_of(ObjectId parent, std::string_view name, uint32_t writer_thread) {
  for (const ObjectPtr& version : of(parent, name))
    if (version->writer_thread == writer_thread) return take(version->id);
  return std::nullopt;
}

std::optional<LostVersions::Lost> LostVersions::take_excess(uint64_t most_bytes, uint64_t most_bytes_in_ram) {
  const bool any = lost_.size() > kMost || bytes_ > most_bytes;
  if (!any && bytes_in_ram_ <= most_bytes_in_ram) return std::nullopt;
  const auto oldest = std::ranges::find_if(lost_, [&](const auto& each) { return each.first != held_ && (any || each.second.only_in_ram); });
  return oldest == lost_.end() ? std::nullopt : take(oldest->first);
}

std::optional<LostVersions::Lost> LostVersions::take_over(int64_t now_ns) {
  const auto over = std::ranges::find_if(lost_, [now_ns](const auto& each) { return each.second.until_ns <= now_ns; });
  return over == lost_.end() ? std::nullopt : take(over->first);
}

}  // namespace kvcachefs
