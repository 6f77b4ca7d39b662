#include "store/object/body_changes.h"

#include <algorithm>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {

void BodyChanges::note_modified(const ObjectPtr& object) const {
  object->attributes.mtime_ns = object->attributes.ctime_ns = parts_.clock.realtime_ns();
  mark_attributes_dirty(object);
  parts_.dirty.wake();
}

void BodyChanges::content_changed(const ObjectPtr& object) const {
  mark_content_dirty(object);  // it keeps the times of before
  object->last_write_ns = parts_.clock.monotonic_ns();
  object->attributes.mtime_ns = object->attributes.ctime_ns = parts_.clock.realtime_ns();
}

void BodyChanges::mark_content_dirty(const ObjectPtr& object) const {
  if (object->journaled_version() == object->content_version) {
    object->base_mtime_ns = object->attributes.mtime_ns;
    object->base_ctime_ns = object->attributes.ctime_ns;
  }
  ++object->content_version;
  if (!std::exchange(object->in_dirty_queue, true)) parts_.dirty.add_content(object);
  parts_.dirty.wake();
}

uint64_t BodyChanges::room_for(uint64_t size_bytes) const {
  const bool may_be_inline = size_bytes < parts_.options.inline_below_bytes();  // in journal and index
  return align_up(may_be_inline ? 2 * size_bytes : size_bytes, kBlockBytes);
}

void BodyChanges::journal_again(const ObjectPtr& object) const {
  if (object->id.is_foreign() || !object->is_regular() || object->durable || object->nlink == 0 || object->content_dirty() || object->base.quarantined) return;
  const uint64_t wanted = object->raw ? 0 : room_for(object->size_bytes);
  if (wanted > object->reserved_bytes) parts_.space.reserve(wanted - std::exchange(object->reserved_bytes, wanted));
  mark_content_dirty(object);
}

bool BodyChanges::reserve_space(Object& object, uint64_t size_bytes) const {
  const uint64_t wanted = room_for(size_bytes);
  if (wanted <= object.reserved_bytes) return true;
  const uint64_t lacking = wanted - object.reserved_bytes, kept = std::min(lacking, object.kept_bytes);
  if (lacking > kept && !parts_.space.try_reserve(lacking - kept)) return false;
  object.kept_bytes -= kept;
  object.reserved_bytes = wanted;
  return true;
}

bool BodyChanges::keep_room(Object& object, bool may_wait) const {
  if (!object.promises_room()) return true;
  const uint64_t wanted = align_up(std::max(object.allocated_to, object.size_bytes), kBlockBytes);
  if (wanted <= object.kept_bytes) return true;
  const uint64_t lacking = wanted - object.kept_bytes;
  if (!parts_.space.try_reserve(lacking) && (may_wait || !parts_.space.reserve_at_once(lacking))) return false;
  object.kept_bytes = wanted;
  return true;
}

// Reason: clients that write in place look at neither length nor content. A body that was never journaled, or that its present writers made
// or truncated to nothing and never synced, is emptied. Otherwise the last writer's close brings the journaled version (the one that was synced last)
// back as a whole, without the changes accepted since; a truncation goes too, as it was part of the change that failed.
void BodyChanges::undo_what_did_not_fit(const ObjectPtr& object, bool last_writer) const {
  if (!object->lacks_a_write() || object->write_error->code != Code::kNoSpace) return;
  if (object->raw || object->sealing) return;
  // `durable`: an object whose record went to another version of its name has no place of its own any more.
  const bool goes_back = object->base_valid_bytes > 0 && !object->written_anew && !object->base.quarantined && object->durable;
  if (!last_writer && object->base_valid_bytes > 0) return;
  object->write_error->undone = last_writer;
  if (goes_back ? !object->content_dirty() || object->is_moving() : object->size_bytes == 0) {
    const uint64_t kept = object->is_moving() ? std::min(room_for(object->size_bytes), object->reserved_bytes) : 0;
    return parts_.space.release(std::exchange(object->reserved_bytes, kept) - kept);
  }
  // Rename and link fail until all bytes that the body had are written anew.
  object->write_error->from = 0;
  object->write_error->to = std::max(object->write_error->to, object->size_bytes);
  object->units.clear();
  object->memory_file.reset();
  const uint64_t reserved = std::exchange(object->reserved_bytes, 0);
  if (object->spill)
    parts_.discards.remove_later(std::exchange(object->spill_extent, {}), PlaceKind::kSolo, reserved);
  else
    parts_.space.release(reserved);
  object->spill.reset();
  object->spill_written.clear();
  if (goes_back) {
    object->size_bytes = object->base_valid_bytes = object->base.size_bytes;
    object->shrunk_to_bytes = UINT64_MAX;
    object->sealed_version = ++object->content_version;
    note_modified(object);
  } else {
    object->size_bytes = object->base_valid_bytes = object->shrunk_to_bytes = 0;
    content_changed(object);
  }
}

void BodyChanges::end_seal(const ObjectPtr& object) const {
  object->sealing = false;
  if (object->write_handles == 0) undo_what_did_not_fit(object, /*last_writer=*/true);
}

bool BodyChanges::let_stay(const ObjectPtr& object) const {
  {
    const auto lock = object->lock();
    if (!object->is_moving()) return false;
    object->sealed_version = object->content_version;
    parts_.space.release(std::exchange(object->sealing_reserved_bytes, 0) + std::exchange(object->reserved_bytes, 0));
    static_cast<void>(keep_room(*object));  // if there is room: a promise made meanwhile had its room reserved with the body
    end_seal(object);
  }
  parts_.dirty.seal_ended();
  return true;
}

void BodyChanges::abandon_seal(const ObjectPtr& object) const {
  {
    const auto lock = object->lock();
    // The next try needs no more than the larger of the two.
    const uint64_t unused = std::exchange(object->sealing_reserved_bytes, 0);
    parts_.space.release(std::min(unused, object->reserved_bytes));
    object->reserved_bytes = std::max(unused, object->reserved_bytes);
    end_seal(object);
    if (object->content_dirty() && !object->in_dirty_queue) {
      object->in_dirty_queue = true;
      parts_.dirty.add_content(object);
    }
  }
  parts_.dirty.wake();
  parts_.dirty.seal_ended();
}

}  // namespace kvcachefs
