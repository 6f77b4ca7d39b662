#include "store/peers/tree_walk.h"

#include <utility>

namespace kvcachefs {

bool TreeWalk::enter(ObjectId directory) {
  if (!entered_.insert(directory).second) return false;
  levels_.push_back({.directory = directory, .page = {}});
  return true;
}

Result<std::optional<NameEntry>> TreeWalk::next() {
  Level& level = levels_.back();
  if (level.at == level.page.size() && !level.is_last) {
    KVC_ASSIGN(level.page, index_.list(level.directory, level.after, kNamesAtOnce));
    level.at = 0;
    level.is_last = level.page.size() < kNamesAtOnce;
    if (!level.page.empty()) level.after = level.page.back().cookie;
  }
  if (level.at < level.page.size()) return std::move(level.page[level.at++]);
  levels_.pop_back();
  return std::nullopt;
}

}  // namespace kvcachefs
