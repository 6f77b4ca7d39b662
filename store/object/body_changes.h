// The bookkeeping for a change of a body beside its bytes: times and versions, the queue of dirty objects, and the space on the volume
// that the next seal of the body will take.
#pragma once

#include <cstdint>

#include "store/api/live_options.h"
#include "store/base/clock.h"
#include "store/object/dirty_queue.h"
#include "store/object/object.h"
#include "store/space/discards.h"
#include "store/space/record_space.h"
#include "store/space/space.h"

namespace kvcachefs {

// Thread-safe; no state of its own. Caller holds the lock of the object that it passes, unless a method says otherwise. None blocks.
class BodyChanges {
 public:
  struct Parts {
    const Clock& clock;
    Space& space;
    RecordSpace& records;
    DirtyQueue& dirty;
    Discards& discards;
    const LiveOptions& options;
  };
  explicit BodyChanges(Parts parts) : parts_(parts) {}

  void mark_attributes_dirty(const ObjectPtr& object) const { kvcachefs::mark_attributes_dirty(object, parts_.records, parts_.dirty); }
  void note_modified(const ObjectPtr& object) const;    // the times change, the bytes do not
  void content_changed(const ObjectPtr& object) const;  // the times change, and the bytes or the size
  void mark_content_dirty(const ObjectPtr& object) const;  // the bytes or the size change, the times do not

  // Queues an object that lost its record to be sealed again; does nothing for other objects. For journal_former_version() (tree/journaled_version.h), which
  // tells when that is due. Reserves its room beyond the capacity if need be: its bytes were accepted before, and its old place is given back.
  void journal_again(const ObjectPtr& object) const;

  // The space on the volume that a seal of a body of `size_bytes` takes.
  uint64_t room_for(uint64_t size_bytes) const;
  // Reserves that space for the object; false: the volume is full.
  bool reserve_space(Object& object, uint64_t size_bytes) const;
  // Reserves the room that fallocate promised, beside the body that is or will be sealed; false: full. `may_wait`: the caller can wait for room.
  bool keep_room(Object& object, bool may_wait = false) const;
  void give_room_up(Object& object) const { parts_.space.release(std::exchange(object.kept_bytes, 0)); }

  // Undoes a body that did not fit, so that it is not left short or mixed under its name (invariant 7 of the store). At a flush
  // other writers may be left: then the journaled version does not come back. Does nothing while the body is sealed.
  void undo_what_did_not_fit(const ObjectPtr& object, bool last_writer) const;

  // The seal under way has ended: its body is settled, or given up. Does the undoing that a last writer, closing meanwhile, left to it.
  void end_seal(const ObjectPtr& object) const;
  // Ends a seal that was to move a body, which may be readable later where it is: the body stays there and is clean. False: the body was
  // written meanwhile, or has to be moved in any case. The object is not locked.
  bool let_stay(const ObjectPtr& object) const;
  // Ends a seal that failed: the content stays dirty, and is sealed again. The object is not locked.
  void abandon_seal(const ObjectPtr& object) const;

 private:
  const Parts parts_;
};

}  // namespace kvcachefs
