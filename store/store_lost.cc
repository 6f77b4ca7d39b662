// Bodies in an extent of which a sync failed. The kernel tells such an error once and then takes the pages for written, so the
// sync is never tried again: the bodies go elsewhere, and until they have no mark of the journal says that they are safe.
#include <algorithm>

#include "store/base/log.h"
#include "store/store_impl.h"

namespace kvcachefs {

// The object is locked. It is sealed once more, as it is. A writer whose write failed decides first what it is.
bool StoreImpl::move_from_lost(const ObjectPtr& object) {
  if (object->nlink == 0 || object->content_dirty() || object->sealing || object->base.quarantined || object->lacks_a_write() ||
      !extents_->is_lost(object->base.place))
    return false;
  // Past the capacity if need be: nothing is given back any more before it lies elsewhere.
  if (!changes_->reserve_space(*object, object->size_bytes)) {
    const uint64_t wanted = std::max(align_up(object->size_bytes, kBlockBytes), object->reserved_bytes);
    space_.reserve(wanted - object->reserved_bytes);
    object->reserved_bytes = wanted;
  }
  for (Unit& unit : object->units) unit.set_dirty(unit.block != nullptr);  // perhaps the only copy: not evicted
  changes_->mark_content_dirty(object);
  object->moving_version = object->content_version;
  return true;
}

// True if any is on its way, of no more than `most`. No lock held.
bool StoreImpl::move_all_from_lost(size_t most) {
  size_t moving = 0;
  for (const auto& [extent, error] : extents_->lost()) {
    for (ObjectId id : unmarked_.in(extent)) {
      if (moving >= most) return true;
      auto kept = tree_->get_kept(id);
      if (!kept) continue;  // removed
      const ObjectPtr object = kept->object;
      auto lock = object->lock();
      if (object->base.place.extent != extent) continue;
      moving += move_from_lost(object) || object->is_moving();
      const bool lacks_record = object->base.quarantined && !object->content_dirty() && !object->sealing;
      const bool is_given_up = quarantine_->is_beyond_help(*object);
      const uint32_t version = object->base.version;
      lock.unlock();
      kept->names.unlock();
      if (lacks_record) quarantine_->put_again(object, version, "its extent could not be synced");
      if (is_given_up) quarantine_->put_moving(object, "a change of it could not be completed from what it was");
    }
  }
  return moving > 0;
}

// The keeper's, before a sync point. Where what was moved is lost as well, the volume syncs nothing at present: from then on one
// body is tried now and then, not all of them for ever.
void StoreImpl::rescue_from_lost() {
  constexpr int64_t kFirstPauseNs = 5'000'000'000, kLongestPauseNs = 600'000'000'000;
  const int64_t now = clock_.monotonic_ns();
  if (rescue_in_vain_ && now < rescue_after_ns_) return;
  for (bool tries_one = rescue_in_vain_;; tries_one = false) {
    const size_t lost_before = extents_->lost().size();
    if (!move_all_from_lost(tries_one ? 1 : SIZE_MAX)) break;
    drain_and_wait();
    sync_ahead();
    if (extents_->lost().size() > lost_before) {
      rescue_pause_ns_ = std::clamp(2 * rescue_pause_ns_, kFirstPauseNs, kLongestPauseNs);
      rescue_after_ns_ = now + rescue_pause_ns_;
      rescue_in_vain_ = true;
      return;
    }
    if (!tries_one) break;
  }
  rescue_in_vain_ = false;
  rescue_pause_ns_ = 0;
}

}  // namespace kvcachefs
