#include "store/tree/lost_versions.h"

#include <algorithm>
#include <ranges>

namespace kvcachefs {

std::vector<const LostVersions::Lost*> LostVersions::of(ObjectId parent, std::string_view name) const {
  std::vector<const Lost*> found;
  for (auto each = by_name_.lower_bound({parent, std::string(name), {}}); each != by_name_.end(); ++each) {
    const auto& [its_parent, its_name, id] = *each;
    if (its_parent != parent || its_name != name) break;
    found.push_back(&lost_.at(id));
  }
  std::ranges::reverse(found);
  return found;
}

std::vector<const LostVersions::Lost*> LostVersions::of_writer(uint32_t thread) const {
  std::vector<const Lost*> found;
  for (const auto& [id, lost] : lost_ | std::views::reverse)
    if (lost.writer_thread == thread) found.push_back(&lost);
  return found;
}

void LostVersions::add(Lost lost) {
  bytes_ += lost.bytes;
  if (lost.only_in_ram) bytes_in_ram_ += lost.bytes;
  by_name_.emplace(lost.parent, lost.name, lost.id);
  lost_.emplace(lost.id, std::move(lost));
}

void LostVersions::give_up(Lost taken) {
  if (!taken.object) return;
  taken.object.reset();
  taken.bytes = 0;
  taken.only_in_ram = false;
  add(std::move(taken));
}

std::optional<LostVersions::Lost> LostVersions::take(ObjectId id) {
  auto taken = lost_.extract(id);
  if (taken.empty()) return std::nullopt;
  Lost& lost = taken.mapped();
  by_name_.erase({lost.parent, lost.name, id});
  bytes_ -= lost.bytes;
  if (lost.only_in_ram) bytes_in_ram_ -= lost.bytes;
  return std::move(lost);
}

std::optional<LostVersions::Lost> LostVersions::take_of(ObjectId parent, std::string_view name, uint32_t writer_thread) {
  for (const Lost* const version : of(parent, name))
    if (version->writer_thread == writer_thread) return take(version->id);
  return std::nullopt;
}

std::optional<LostVersions::Lost> LostVersions::take_excess(uint64_t most_bytes, uint64_t most_bytes_in_ram) {
  const bool many = lost_.size() > kMost, large = bytes_ > most_bytes, large_in_ram = bytes_in_ram_ > most_bytes_in_ram;
  if (!many && !large && !large_in_ram) return std::nullopt;
  const auto oldest = std::ranges::find_if(lost_, [&](const auto& each) {
    const Lost& lost = each.second;
    return lost.id != held_ && (many || (lost.object && (large || lost.only_in_ram)));
  });
  return oldest == lost_.end() ? std::nullopt : take(oldest->first);
}

std::optional<LostVersions::Lost> LostVersions::take_over(int64_t now_ns) {
  const auto over = std::ranges::find_if(lost_, [now_ns](const auto& each) { return each.second.until_ns <= now_ns; });
  return over == lost_.end() ? std::nullopt : take(over->first);
}

}  // namespace kvcachefs
