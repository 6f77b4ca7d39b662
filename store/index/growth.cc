#include "store/index/growth.h"

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kPageBytes = 4 * kKiB;
constexpr uint64_t kLeastLargeBytes = 1900;  // a little less than half a page: larger rows get pages of their own
constexpr uint64_t kKeyBytes = 32;           // of a key, with the overhead of LMDB and the checksum for each row
constexpr uint64_t kFixedBytes = 64;         // of a row with little in it
constexpr uint64_t kNumberBytes = 16;        // of an id, with the fields beside it
constexpr int kNeighboursBits = 4;           // 2^4 objects with consecutive numbers share a page: new objects are consecutive, and so are those evicted by age
}  // namespace

void IndexGrowth::add_row(uint64_t bytes) {
  const uint64_t with_key = bytes + kKeyBytes;
  if (with_key >= kLeastLargeBytes) {
    large_bytes_ += (with_key / kPageBytes + 1) * kPageBytes;
  } else {
    small_bytes_ += with_key;
  }
}

// Removed rows change pages and add nothing.
void IndexGrowth::add(const Layer& rows) {
  for (const auto& [id, row] : rows.objects) {
    neighbours_.insert(id.value >> kNeighboursBits);
    if (row == nullptr) continue;
    const ObjectRecord& object = row->object;
    add_row(kFixedBytes + bytes_of(object.attributes.xattrs) + object.body.inline_bytes.size() + object.body.checksums.size() * sizeof(uint64_t));
  }
  for (const auto& [key, row] : rows.names.rows()) {
    uint64_t bytes = 0;
    for (const NameEntry& entry : row) bytes += kNumberBytes + entry.name.size();
    if (!row.empty()) add_row(bytes);
  }
  for (const auto& [id, usage] : rows.extents) {
    if (usage.bodies > 0) add_row(kNumberBytes);
  }
  for (const auto& [id, row] : rows.successors) {
    if (row != nullptr) add_row(kFixedBytes + row->successors.size() * kNumberBytes);
  }
  for (size_t i = 0; i < rows.statements.size(); ++i) add_row(2 * kFixedBytes);
  names_ += rows.names.size();
  others_ += rows.extents.size() + rows.successors.size() + rows.statements.size();
}

// Each row rewrites its page and part of the path to it, as far as there are such pages. Pages freed by earlier commits are used first, but not for
// large rows, which need free pages that lie side by side: there are seldom any.
uint64_t IndexGrowth::bytes(const IndexPages& pages) const {
  constexpr uint64_t kSmallTimes = 2;  // pages are half full
  constexpr uint64_t kOwnPages = 4;    // LMDB's own
  if (neighbours_.empty() && names_ + others_ + small_bytes_ + large_bytes_ == 0) return 0;
  const uint64_t objects = std::min<uint64_t>(neighbours_.size(), pages.leaves_of_objects), names = std::min(names_, pages.leaves_of_names);
  const uint64_t leaves = objects + names + std::min(others_, pages.other_leaves);
  const uint64_t small = (leaves + std::min(2 * leaves, pages.branches) + kOwnPages) * kPageBytes + kSmallTimes * small_bytes_;
  return large_bytes_ + small - std::min(small, pages.reusable_bytes);
}

}  // namespace kvcachefs
