// Objects of peers that their nodes changed while clients here have them open.
#include <algorithm>

#include "store/base/log.h"
#include "store/tree/tree.h"

namespace kvcachefs {

namespace {

constexpr uint32_t kOutdatedOrdinal = 255;  // of the ids of outdated objects, which no node has; in epoch 0, so they are no nodeids either

// A raw file that its node changed is the same file: whoever has it open sees its new bytes, so it shows the new length, too.
bool is_same_raw_file(const Body& before, const Body& now) {
  return now.place.kind == PlaceKind::kRaw && before.place.kind == PlaceKind::kRaw && before.place.extent == now.place.extent;
}

bool is_same_body(const Body& before, const Body& now) {
  return now.place == before.place && now.size_bytes == before.size_bytes && now.checksums == before.checksums;
}

}  // namespace

// A client that has the object open reads on what it opened, and sees its attributes as they were; the next open gets what its node has now.
void Tree::Write::look_again(ObjectId id) {
  tree().recent_changes_.note(id, tree().parts_.clock.monotonic_ns());
  end_quarantine(id);
  forget_removed(id);
  const ObjectPtr object = live(id);
  const auto [first, last] = tree().outdated_.equal_range(id);
  if (!object && first == last) return;
  auto record = view().find_object(id);
  if (!record) return log::warn("object {} of a peer: {}", id.value, record.error().message);
  const uint32_t nlink = *record ? (*record)->nlink : 0;
  std::for_each(first, last, [&](const auto& each) {
    const ObjectPtr before = live(each.second);
    const auto lock = before->lock();
    before->nlink = nlink;
    if (!*record && !object) note_removed(stat_of(*before));  // a client may have looked it up before
  });
  if (!object) return;
  Place place;  // of the body that is read here
  bool outdated = false;
  {
    const auto lock = object->lock();
    place = object->base.place;
    object->nlink = !*record && object->leased ? 1 : nlink;
    if (*record) {
      Body& now = (*record)->body;
      // A read that is under way goes by the former place: the object keeps it, and the peer is told.
      const bool moved = has_same_bytes(object->base, now) && object->loading.empty() && object->base.quarantined == now.quarantined;
      outdated = !moved && !is_same_body(object->base, now) && !is_same_raw_file(object->base, now);
      if (!outdated) {
        object->attributes = std::move((*record)->attributes);
        object->base.quarantined |= now.quarantined;
        if (moved) {
          object->base.version = now.version;
          object->base.place = now.place;
          object->base.inline_bytes = std::move(now.inline_bytes);
        }
        if (now.place.kind == PlaceKind::kRaw) {
          object->size_bytes = object->base.size_bytes = now.size_bytes;
          object->base.place = now.place;
        }
      }
    }
  }
  if (outdated) {  // from now on the id means what its node has now; handles have the object itself
    const ObjectId as = ObjectId::make(kOutdatedOrdinal, 0, ++tree().outdated_given_);
    {
      const auto lock = object->lock();
      object->outdated = as;
    }
    tree().table_.erase(id);
    tree().table_.emplace(as, object);
    tree().outdated_.emplace(id, as);
  }
  forget_if_idle(object);
  if (!*record || outdated) tree().given_up_by_peers_.add(id, place);
}

void Tree::Write::erase_from_table(const Object& object) {
  const ObjectId as = object.outdated;
  tree().table_.erase(as.valid() ? as : object.id);
  if (!as.valid()) return;
  const auto [first, last] = tree().outdated_.equal_range(object.id);
  const auto found = std::find_if(first, last, [as](const auto& each) { return each.second == as; });
  if (found != last) tree().outdated_.erase(found);
}

bool Tree::View::is_given_up_and_read(ObjectId id) const {
  const auto [first, last] = tree_->outdated_.equal_range(id);
  if (std::any_of(first, last, [this](const auto& each) { return is_read_still(*live(each.second)); })) return true;
  const ObjectPtr object = live(id);
  if (!object) return false;
  {
    const auto lock = object->lock();
    if (object->nlink > 0 && !object->leased) return false;  // its node has it
  }
  return is_read_still(*object);
}

}  // namespace kvcachefs
