#include "tools/simulate/extent_model.h"

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {

ExtentModel::ExtentModel(const ExtentSettings& settings, uint32_t distinct_units, uint64_t held_bytes)
    : settings_(settings),
      limit_bytes_(static_cast<uint64_t>(static_cast<double>(held_bytes) / settings.fill)),
      places_(distinct_units),
      extents_(1) {
  // A real store has space for thousands of extents. In a small store, the extent that is being filled and the one that is being
  // emptied would take all the spare space.
  settings_.extent_bytes =
      std::clamp(align_down((limit_bytes_ - held_bytes) / 4, kBlockBytes), kBlockBytes, settings_.extent_bytes);
}

void ExtentModel::append(uint32_t unit, uint64_t bytes) {
  if (extents_[open_].used_bytes > 0 && extents_[open_].used_bytes + bytes > settings_.extent_bytes) {
    open_ = 0;
    while (open_ < extents_.size() && extents_[open_].used_bytes > 0) ++open_;
    if (open_ == extents_.size()) extents_.emplace_back();
  }
  Extent& extent = extents_[open_];
  places_[unit] = {open_, extent.used_bytes, bytes};
  extent.used_bytes += bytes;
  extent.live_bytes += bytes;
  extent.units.push_back(unit);
  taken_bytes_ += bytes;
}

void ExtentModel::write(uint32_t unit, uint64_t bytes) {
  bytes = align_up(std::max<uint64_t>(bytes, 1), kBlockBytes);
  counts_.written_bytes += bytes;
  append(unit, bytes);
  if (!settings_.punch) compact();
}

void ExtentModel::evict(uint32_t unit) {
  Place& place = places_[unit];
  if (place.extent == kNowhere) return;
  Extent& extent = extents_[place.extent];
  extent.live_bytes -= place.bytes;
  if (settings_.punch) taken_bytes_ -= place.bytes;
  if (extent.live_bytes == 0 && place.extent != open_) {
    if (!settings_.punch) taken_bytes_ -= extent.used_bytes;
    extent = Extent();
  }
  place = {};
}

void ExtentModel::compact() {
  while (taken_bytes_ > limit_bytes_) {
    uint32_t emptiest = kNowhere;
    for (uint32_t i = 0; i < extents_.size(); ++i) {
      const Extent& extent = extents_[i];
      if (i == open_ || extent.live_bytes == extent.used_bytes) continue;
      if (emptiest == kNowhere || extent.live_bytes < extents_[emptiest].live_bytes) emptiest = i;
    }
    if (emptiest == kNowhere) return;  // nothing is dead: the request being served needs more than the capacity
    Extent old = std::move(extents_[emptiest]);
    // The old extent stays in the list as taken until its remains have moved, so that they are not moved into it.
    extents_[emptiest].used_bytes = old.used_bytes;
    for (size_t i = old.units.size(); give_up_ && i-- > 0;) {
      Place& place = places_[old.units[i]];
      if (place.extent == emptiest && give_up_(old.units[i])) place = {};
    }
    for (const uint32_t unit : old.units) {
      const Place place = places_[unit];
      if (place.extent != emptiest) continue;
      append(unit, place.bytes);
      counts_.rewritten_bytes += place.bytes;
    }
    extents_[emptiest] = Extent();
    taken_bytes_ -= old.used_bytes;
  }
}

void ExtentModel::restore(std::span<const uint32_t> units) {
  const Place* before = nullptr;
  for (const uint32_t unit : units) {
    const Place& place = places_[unit];
    ++counts_.restored_units;
    if (before == nullptr || place.extent != before->extent || place.offset != before->offset + before->bytes)
      ++counts_.restored_ranges;
    before = &place;
  }
}

}  // namespace kvcachefs
