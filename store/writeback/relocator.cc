#include "store/writeback/relocator.h"

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {

// Not after a failed write: its writer decides first what becomes of the body.
bool Relocator::may_move(const Object& object) {
  return object.nlink > 0 && !object.content_dirty() && !object.sealing && !object.base.quarantined && !object.lacks_a_write();
}

void Relocator::seal_again(const ObjectPtr& object) {
  parts_.changes.mark_content_dirty(object);
  object->moving_version = object->content_version;
}

bool Relocator::move(const ObjectPtr& object) {
  if (!parts_.extents.is_lost(object->base.place)) return false;
  if (object->is_moving())  // it was moving out of a pack, which is now lost too
    for (Unit& unit : object->units) unit.set_dirty(unit.block != nullptr);
  if (!may_move(*object)) return false;
  // Exceeds the capacity if need be: no space is given back any more before the body lies elsewhere.
  if (!parts_.changes.reserve_space(*object, object->size_bytes)) {
    const uint64_t wanted = std::max(align_up(object->size_bytes, kBlockBytes), object->reserved_bytes);
    parts_.space.reserve(wanted - object->reserved_bytes);
    object->reserved_bytes = wanted;
  }
  for (Unit& unit : object->units) unit.set_dirty(unit.block != nullptr);  // it may be the only copy: it must not be evicted
  seal_again(object);
  return true;
}

Relocator::Moved Relocator::move_from(const ObjectPtr& object, ExtentId pack, uint64_t& kept_bytes) {
  const Place& place = object->base.place;
  if (place.kind != PlaceKind::kPacked || place.extent != pack || object->write_handles > 0 || !may_move(*object)) return Moved::kNotNow;
  if (!parts_.changes.reserve_space(*object, object->size_bytes)) {
    const uint64_t lacking = parts_.changes.room_for(object->size_bytes) - object->reserved_bytes;  // positive, since reserve_space() failed
    if (lacking > kept_bytes) return Moved::kNoRoom;
    kept_bytes -= lacking;
    object->reserved_bytes += lacking;
  }
  seal_again(object);
  return Moved::kYes;
}

bool Relocator::move_all(size_t most) {
  size_t moving = 0;
  for (const auto& [extent, error] : parts_.extents.lost()) {
    for (ObjectId id : parts_.unmarked.in(extent)) {
      if (moving >= most) return true;
      auto kept = parts_.tree.get_kept(id);
      if (!kept) continue;  // removed
      const ObjectPtr object = kept->object;
      auto lock = object->lock();
      if (object->base.place.extent != extent) continue;
      moving += move(object) || object->is_moving();
      const bool lacks_record = object->base.quarantined && !object->content_dirty() && !object->sealing;
      const bool is_given_up = parts_.quarantine.is_beyond_help(*object);
      const uint32_t version = object->base.version;
      lock.unlock();
      kept->names.unlock();
      if (lacks_record) parts_.quarantine.put_again(object, version, "its extent could not be synced");
      if (is_given_up) parts_.quarantine.put_moving(object, "a change of it could not be completed from what it was");
    }
  }
  return moving > 0;
}

void Relocator::rescue(const std::function<void()>& drain_and_sync) {
  constexpr int64_t kFirstPauseNs = 5'000'000'000, kLongestPauseNs = 600'000'000'000;
  const int64_t now = parts_.clock.monotonic_ns();
  if (in_vain_ && now < next_try_ns_) return;
  for (bool tries_one = in_vain_;; tries_one = false) {
    const size_t lost_before = parts_.extents.lost().size();
    if (!move_all(tries_one ? 1 : SIZE_MAX)) break;
    drain_and_sync();
    if (parts_.extents.lost().size() > lost_before) {
      pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
      next_try_ns_ = now + pause_ns_;
      in_vain_ = true;
      return;
    }
    if (!tries_one) break;
  }
  in_vain_ = false;
  pause_ns_ = 0;
}

}  // namespace kvcachefs
