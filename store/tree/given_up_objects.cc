#include "store/tree/given_up_objects.h"

#include <algorithm>

namespace kvcachefs {
namespace {

bool is_in_an_extent(const Place& place) { return place.kind != PlaceKind::kNone && place.kind != PlaceKind::kInline; }

// Only the last heir can be given up, or the one before it: the batch that gives that one up and the one that names the last are read in turn.
constexpr size_t kMostHeirs = 2;

ObjectId id_of_its_node(ObjectId here) { return ObjectId::make(0, here.epoch(), here.number()); }

}  // namespace

void GivenUpObjects::add(ObjectId id, const Place& place) {
  auto& places = objects_[id].places;
  if (std::ranges::find(places, place) != places.end()) return;
  places.push_back(place);
  if (is_in_an_extent(place)) by_place_.emplace(Where{place.extent, place.offset}, id);
}

void GivenUpObjects::has_place(ObjectId id, const Place& place) {
  if (by_place_.empty() || !is_in_an_extent(place)) return;
  const auto [first, last] = by_place_.equal_range(Where{place.extent, place.offset});
  for (auto each = first; each != last; ++each) {
    if (each->second == id || each->second.node_ordinal() != id.node_ordinal()) continue;
    auto& heirs = objects_.at(each->second).heirs;
    if (std::ranges::find(heirs, id) != heirs.end()) continue;
    if (heirs.size() == kMostHeirs) heirs.erase(heirs.begin());
    heirs.push_back(id);
  }
}

void GivenUpObjects::forget_node(uint32_t ordinal) {
  for (auto each = objects_.lower_bound(ObjectId::make(ordinal, 0, 0)); each != objects_.end() && each->first.node_ordinal() == ordinal;) each = erase(each);
}

std::vector<ObjectId> GivenUpObjects::still_read(uint32_t ordinal, size_t most, const IsRead& is_read) {
  std::vector<ObjectId> ids;
  for (auto each = objects_.lower_bound(ObjectId::make(ordinal, 0, 0)); each != objects_.end() && each->first.node_ordinal() == ordinal;) {
    if (!is_read(each->first)) {
      each = erase(each);
      continue;
    }
    if (ids.size() < most) {
      ids.push_back(id_of_its_node(each->first));
      for (const ObjectId heir : each->second.heirs) ids.push_back(id_of_its_node(heir));
    }
    ++each;
  }
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

void GivenUpObjects::drop_read(const IsRead& is_read) {
  if (objects_.size() < drop_at_) return;
  for (auto each = objects_.begin(); each != objects_.end();) each = is_read(each->first) ? std::next(each) : erase(each);
  drop_at_ = std::max<size_t>(64, objects_.size() * 2);
}

GivenUpObjects::Objects::iterator GivenUpObjects::erase(Objects::iterator at) {
  for (const Place& place : at->second.places) {
    const auto [first, last] = by_place_.equal_range(Where{place.extent, place.offset});
    const auto found = std::find_if(first, last, [at](const auto& each) { return each.second == at->first; });
    if (found != last) by_place_.erase(found);
  }
  return objects_.erase(at);
}

}  // namespace kvcachefs
