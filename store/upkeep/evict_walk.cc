#include "store/upkeep/evict_walk.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/object/pin_mark.h"

namespace kvcachefs {

namespace {
constexpr int64_t kFillNs = 20'000'000;  // per piece, so that the keeper can do its other work
}  // namespace

void EvictWalk::tell_of_names() {
  constexpr size_t kPageNames = 128;
  const ObjectId directory = at_.directories.front();
  std::vector<NameEntry> page;
  {
    const Tree::Read tree = parts_.tree.read();
    if (at_.after == 0) {
      const auto attributes = attributes_of(tree, directory);
      parts_.evictor.found_directory({}, {}, directory, attributes && has_pin(*attributes));
    }
    if (auto listed = tree.names().list(directory, at_.after, kPageNames)) page = std::move(*listed);
  }
  if (page.empty()) {
    at_.directories.pop_front();
    at_.after = 0;
    at_.over = at_.directories.empty();
    return;
  }
  at_.after = page.back().cookie;
  for (const NameEntry& entry : page) {
    if (entry.child.is_foreign()) continue;  // its node evicts it
    if (entry.type_bits == S_IFDIR) {
      parts_.evictor.found_directory(directory, entry.name, entry.child, false);
      at_.directories.push_back(entry.child);
      continue;
    }
    if (entry.type_bits != S_IFREG) continue;
    Tree::Read tree = parts_.tree.read();
    const auto attributes = attributes_of(tree, entry.child);
    const auto stat = tree.stat(entry.child);
    tree.unlock();
    if (!attributes || !stat) continue;
    Evictor::Found found{.parent = directory, .id = entry.child, .name = entry.name, .follows = {}};
    found.size_bytes = stat->size_bytes;
    found.used_ns = std::max(stat->atime_ns, stat->mtime_ns);
    found.pinned = has_pin(*attributes);
    if (auto row = parts_.index.find_successors(entry.child); row && *row) found.follows = (*row)->predecessor;
    parts_.evictor.found(found);
  }
}

std::optional<Attributes> EvictWalk::attributes_of(const Tree::View& tree, ObjectId id) {
  if (ObjectPtr object = tree.live(id)) {
    const auto lock = object->lock();
    return object->attributes;
  }
  auto record = tree.record_summary(id);
  if (!record || !*record) return std::nullopt;
  return std::move((*record)->attributes);
}

// What was pinned before stays pinned although it is more than may be pinned now: told after each filling, when it begins, and when the limit
// changes by more than a 16th. (A capacity in percent follows the file system, which can change a little all the time.)
void EvictWalk::warn_of_pins() {
  const Evictor::Pinned now = parts_.evictor.pinned();
  const bool too_many = now.bytes > now.most_bytes, were_too_many = judged_.bytes > judged_.most_bytes;
  const uint64_t change = std::max(now.most_bytes, judged_.most_bytes) - std::min(now.most_bytes, judged_.most_bytes);
  if (now.filling == judged_.filling && too_many == were_too_many && change <= judged_.most_bytes / 16) return;
  judged_ = now;
  if (!too_many) return;
  log::warn("{} is pinned, more than half of capacity={}: raise capacity or unpin", format_size(now.bytes), format_size(2 * now.most_bytes));
}

bool EvictWalk::go_on(bool to_the_end) {
  if (!parts_.evictor.on()) return false;
  const uint64_t number = parts_.evictor.filling();
  if (number == 0 && at_.number == 0) {
    warn_of_pins();
    return false;
  }
  if (number != 0 && at_.number != number) {
    at_ = {};
    at_.number = number;
    at_.directories.push_back(kRootId);
  }
  const int64_t until_ns = parts_.clock.monotonic_ns() + kFillNs;
  while (at_.number != 0 && !stopping_ && (to_the_end || parts_.clock.monotonic_ns() < until_ns)) {
    if (!at_.over) tell_of_names();
    else if (parts_.evictor.build(at_.number)) at_ = {};
  }
  if (at_.number != 0) parts_.keeper.wake();
  else warn_of_pins();
  return true;
}

}  // namespace kvcachefs
