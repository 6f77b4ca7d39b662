#include "store/index/taken_places.h"

#include <iterator>

#include "store/base/units.h"

namespace kvcachefs {

bool TakenPlaces::take(const Place& place) {
  auto [at, fresh] = extents_.try_emplace(place.extent);
  Extent& extent = at->second;
  if (fresh) extent.kind = place.kind;
  if (extent.kind != place.kind) return false;
  if (place.kind != PlaceKind::kPacked) return fresh;
  uint64_t begin = place.offset, end = begin + align_up(place.length, kBlockBytes);
  if (begin == end) return true;
  auto next = extent.taken.upper_bound(begin);
  if (next != extent.taken.end() && next->first < end) return false;
  if (next != extent.taken.begin()) {
    const auto before = std::prev(next);
    if (before->second > begin) return false;
    if (before->second == begin) {
      begin = before->first;
      extent.taken.erase(before);
    }
  }
  if (next != extent.taken.end() && next->first == end) {
    end = next->second;
    next = extent.taken.erase(next);
  }
  extent.taken.emplace_hint(next, begin, end);
  return true;
}

void TakenPlaces::give_back(const Place& place) {
  const auto at = extents_.find(place.extent);
  if (place.kind != PlaceKind::kPacked) {
    extents_.erase(at);
    return;
  }
  std::map<uint64_t, uint64_t>& taken = at->second.taken;
  const uint64_t begin = place.offset, end = begin + align_up(place.length, kBlockBytes);
  if (begin != end) {
    const auto range = std::prev(taken.upper_bound(begin));
    if (const uint64_t range_end = range->second; range_end > end) taken.emplace(end, range_end);
    if (range->first == begin) taken.erase(range);
    else range->second = begin;
  }
  if (taken.empty()) extents_.erase(at);
}

}  // namespace kvcachefs
