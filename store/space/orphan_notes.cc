#include "store/space/orphan_notes.h"

#include <algorithm>
#include <unordered_map>

namespace kvcachefs {

std::vector<FreedPlace> OrphanNotes::take_leftovers(const Index& index) {
  places_known_ = false;
  auto left = index.leftovers();
  if (!left) return {};
  swept_epoch_ = left->swept_epoch;
  extents_ = std::move(left->extents);
  extents_due_ = !extents_.empty();
  packs_unswept_ = left->in_packs;
  unlisted_ = left->unlisted;
  places_known_ = left->held_until != JournalPosition{};
  return std::move(left->held);
}

uint64_t OrphanNotes::note_leftovers(Index& index, std::span<const FreedPlace> taken, const MayBeRead& may_be_read, bool ends) {
  constexpr size_t kMostExtents = 32 * 1024;  // if there are more, their epochs are listed instead
  changed_ = false;
  Leftovers left;
  left.swept_epoch = swept_epoch_;
  left.in_packs = packs_unswept_;
  left.unlisted = unlisted_;
  if (places_known_ && may_be_read) left.held_until = index.next_position();
  std::unordered_map<ExtentId, PlaceKind> given_up;
  auto add = [&](const FreedPlace& freed) {
    const Place& place = freed.place;
    const bool has_blocks = place.kind != PlaceKind::kNone && place.kind != PlaceKind::kInline;
    if (has_blocks && freed.object.valid() && may_be_read && may_be_read(freed)) {
      if (left.held.size() < kMostHeld) left.held.push_back(freed);
      else left.held_until = {};
    }
    left.in_packs |= place.kind == PlaceKind::kPacked && place.length > 0;
    if (place.extent.valid() && (ends || place.extent.epoch <= swept_epoch_)) given_up.emplace(place.extent, place.kind);
  };
  for (const FreedPlace& freed : taken) add(freed);
  dead_.for_each(add);
  left.in_packs |= dead_.has_unpunched();
  for (const Leftovers::Extent& extent : extents_) given_up.emplace(extent.id, extent.kind);
  uint32_t oldest = UINT32_MAX;
  for (const auto& [extent, kind] : given_up) {
    if (auto usage = index.find_extent(extent); usage && *usage) continue;  // a pack: it goes with its last body
    left.extents.push_back({extent, kind});
    oldest = std::min(oldest, extent.epoch);
  }
  if (left.extents.size() > kMostExtents) {
    left.extents.clear();
    left.unlisted = true;
    left.swept_epoch = std::min(swept_epoch_, oldest - 1);
  }
  const uint64_t row_bytes = left.row_bytes();
  index.set_leftovers(std::move(left));
  return row_bytes;
}

void OrphanNotes::extents_swept(std::vector<Leftovers::Extent> left, std::optional<uint32_t> swept_epoch, uint64_t left_bytes) {
  extents_ = std::move(left);
  if (swept_epoch) {
    swept_epoch_ = *swept_epoch;
    unlisted_ = false;
  }
  changed_ = true;
  extent_bytes_ = std::min(extent_bytes_, left_bytes);
  tell_space();
}

void OrphanNotes::packs_swept() {
  packs_unswept_ = false;
  changed_ = true;
  packs_left(0);
}

void OrphanNotes::measured(uint64_t extent_bytes, uint64_t pack_bytes) {
  extent_bytes_ = extent_bytes;
  pack_bytes_ = pack_bytes;
  tell_space();
}

void OrphanNotes::packs_left(uint64_t pack_bytes) {
  pack_bytes_ = pack_bytes;
  tell_space();
}

}  // namespace kvcachefs
