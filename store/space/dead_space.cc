#include "store/space/dead_space.h"

#include <algorithm>
#include <string>
#include <utility>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/extent/pack_gaps.h"

namespace kvcachefs {

namespace {

uint64_t bytes_of(const Place& place) { return align_up(place.length, kBlockBytes); }

// Makes the reclaimer look at the pack once more; the entry itself counts no dead bytes.
FreedPlace look_at(ExtentId pack) { return {ObjectId{}, Place{PlaceKind::kPacked, pack, 0, 0}}; }

std::unordered_map<ExtentId, uint64_t> bytes_by_extent(const std::vector<FreedPlace>& places) {
  std::unordered_map<ExtentId, uint64_t> bytes;
  for (const FreedPlace& freed : places) bytes[freed.place.extent] += bytes_of(freed.place);
  return bytes;
}

// Drops places in extents that are gone. Returns the bytes of the others that still have blocks.
uint64_t drop_reclaimed(std::vector<FreedPlace>& places, const Index& index, const DeadSpace::ExtentInfo& info_of) {
  std::unordered_map<ExtentId, uint64_t> dead = bytes_by_extent(places);
  std::unordered_set<ExtentId> gone;
  uint64_t dead_bytes = 0;
  for (const FreedPlace& freed : places) {
    const Place& place = freed.place;
    auto bytes = dead.find(place.extent);
    if (bytes == dead.end()) continue;  // seen
    auto info = info_of(place.extent, place.kind);
    if (!info && info.error().code == Code::kNotFound) {
      gone.insert(place.extent);
    } else {
      uint64_t allocated = info ? info->allocated_bytes : UINT64_MAX;
      auto usage = index.find_extent(place.extent);
      if (usage && *usage) allocated -= std::min(allocated, (*usage)->live_bytes);
      dead_bytes += std::min(bytes->second, allocated);
    }
    dead.erase(bytes);
  }
  std::erase_if(places, [&](const FreedPlace& freed) { return gone.contains(freed.place.extent); });
  return dead_bytes;
}

// A volume that cannot punch keeps the dead ranges of a pack until all of it is dead, over any number of lives. They count as
// dead, except those in `places`, which the reclaimer will look at.
std::unordered_map<ExtentId, uint64_t> find_unpunched(const std::vector<FreedPlace>& places, const Index& index,
                                                      const DeadSpace::ExtentInfo& info_of) {
  const std::unordered_map<ExtentId, uint64_t> in_hand = bytes_by_extent(places);
  std::unordered_map<ExtentId, uint64_t> unpunched;
  std::vector<ExtentId> packs;
  Status status = index.scan_extents([&](ExtentId id, const ExtentUsage& usage) {
    if (usage.kind == PlaceKind::kPacked) packs.push_back(id);
    return true;
  });
  if (!status) log::error("index: {}", status.error().message);
  for (ExtentId id : packs) {
    auto usage = index.find_extent(id);  // the scan shows committed rows only
    if (!usage || !*usage) continue;
    auto info = info_of(id, PlaceKind::kPacked);
    if (!info) continue;
    uint64_t bytes = pack_surplus_bytes(info->allocated_bytes, (*usage)->live_bytes, (*usage)->bodies);
    if (auto dead = in_hand.find(id); dead != in_hand.end()) bytes -= std::min(bytes, dead->second);
    if (bytes > 0) unpunched[id] = bytes;
  }
  return unpunched;
}

}  // namespace

void DeadSpace::add(ObjectId object, const Place& place) {
  if (place.kind != PlaceKind::kPacked && place.kind != PlaceKind::kSolo) return;
  std::lock_guard lock(mutex_);
  freed_.push_back({object, place});
  freed_bytes_ += bytes_of(place);
  space_.set_dead(dead_bytes());
  space_.hope();
}

void DeadSpace::journaled(std::span<const FreedPlace> freed, uint64_t live_bytes, uint64_t consumed_bytes) {
  std::vector<ObjectId> gave_up;
  gave_up.reserve(freed.size());
  for (const FreedPlace& place : freed) gave_up.push_back(place.object);
  std::lock_guard lock(mutex_);
  for (const FreedPlace& place : freed) freed_bytes_ += bytes_of(place.place);
  freed_.insert(freed_.end(), freed.begin(), freed.end());
  space_.journaled(live_bytes, dead_bytes(), consumed_bytes, gave_up);
}

void DeadSpace::pack_opened(ExtentId extent) {
  std::lock_guard lock(mutex_);
  open_packs_.insert(extent);
}

void DeadSpace::packs_closed(std::span<const ExtentId> extents) {
  std::lock_guard lock(mutex_);
  for (ExtentId extent : extents) {
    open_packs_.erase(extent);
    freed_.push_back(look_at(extent));
  }
}

bool DeadSpace::is_open(ExtentId extent) const {
  std::lock_guard lock(mutex_);
  return open_packs_.contains(extent);
}

void DeadSpace::look_again(ExtentId extent) {
  std::lock_guard lock(mutex_);
  freed_.push_back(look_at(extent));
}

bool DeadSpace::mentions(ExtentId extent) const {
  std::lock_guard lock(mutex_);
  return std::any_of(freed_.begin(), freed_.end(),
                     [&](const FreedPlace& freed) { return freed.place.extent == extent && freed.place.length > 0; });
}

std::vector<FreedPlace> DeadSpace::take() {
  std::lock_guard lock(mutex_);
  unpunched_bytes_at_take_ = unpunched_bytes_;
  return std::exchange(freed_, {});
}

void DeadSpace::put_back(std::vector<FreedPlace> places) {
  std::lock_guard lock(mutex_);
  freed_.insert(freed_.end(), places.begin(), places.end());
}

uint64_t DeadSpace::settle(std::vector<FreedPlace> kept) {
  std::lock_guard lock(mutex_);
  const uint64_t dead_before = freed_bytes_ + unpunched_bytes_at_take_;
  freed_.insert(freed_.end(), kept.begin(), kept.end());
  freed_bytes_ = 0;  // counted anew: at a start it was measured, which may have been less
  for (const FreedPlace& freed : freed_) freed_bytes_ += bytes_of(freed.place);
  space_.gave_back(dead_bytes());
  return dead_before - std::min(dead_before, dead_bytes());
}

void DeadSpace::keep_unpunched(ExtentId extent, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  unpunched_[extent] += bytes;
  unpunched_bytes_ += bytes;
}

void DeadSpace::removed(ExtentId extent) {
  std::lock_guard lock(mutex_);
  auto ranges = unpunched_.find(extent);
  if (ranges == unpunched_.end()) return;
  unpunched_bytes_ -= ranges->second;
  unpunched_.erase(ranges);
}

bool DeadSpace::any() const {
  std::lock_guard lock(mutex_);
  return !freed_.empty();
}

uint64_t DeadSpace::bytes() const {
  std::lock_guard lock(mutex_);
  return freed_bytes_;
}

bool DeadSpace::has_unpunched() const {
  std::lock_guard lock(mutex_);
  return unpunched_bytes_ > 0;
}

uint64_t DeadSpace::unpunched_bytes() const {
  std::lock_guard lock(mutex_);
  return unpunched_bytes_;
}

std::vector<std::pair<ExtentId, uint64_t>> DeadSpace::unpunched() const {
  std::lock_guard lock(mutex_);
  return {unpunched_.begin(), unpunched_.end()};
}

void DeadSpace::for_each(const std::function<void(const FreedPlace&)>& look) const {
  std::lock_guard lock(mutex_);
  for (const FreedPlace& freed : freed_) look(freed);
}

void DeadSpace::found(std::span<const FreedPlace> freed) {
  std::lock_guard lock(mutex_);
  for (const FreedPlace& place : freed) freed_bytes_ += bytes_of(place.place);
  freed_.insert(freed_.end(), freed.begin(), freed.end());
  space_.set_dead(dead_bytes());
}

void DeadSpace::found_before(JournalPosition position) {
  std::lock_guard lock(mutex_);
  for (FreedPlace& freed : freed_) freed.given_up_at = position;
}

void DeadSpace::clear() {
  std::lock_guard lock(mutex_);
  freed_.clear();
  freed_bytes_ = 0;
  space_.set_dead(dead_bytes());
}

bool DeadSpace::forget_reclaimed(const Index& index, bool can_punch, const ExtentInfo& info) {
  std::vector<FreedPlace> places = take();
  const uint64_t bytes = drop_reclaimed(places, index, info);
  auto unpunched = can_punch ? std::unordered_map<ExtentId, uint64_t>() : find_unpunched(places, index, info);
  const auto is_raw = [](const FreedPlace& freed) { return freed.place.kind == PlaceKind::kRaw; };  // of no known length
  const bool any_raw = std::any_of(places.begin(), places.end(), is_raw);
  std::lock_guard lock(mutex_);
  freed_ = std::move(places);
  freed_bytes_ = bytes;
  unpunched_ = std::move(unpunched);
  unpunched_bytes_ = 0;
  for (const auto& [extent, of_it] : unpunched_) unpunched_bytes_ += of_it;
  space_.set_dead(dead_bytes());
  return bytes > 0 || any_raw;
}

}  // namespace kvcachefs
