// What a change of a body entails beside its bytes: times and versions, the queue of what is dirty, and the space of the volume that
// the next seal of it will take.
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

// Thread-safe; no state of its own. An object that a method is given is locked, where nothing else is said. None blocks.
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
  void note_modified(const ObjectPtr& object) const;    // its times, not its bytes
  void content_changed(const ObjectPtr& object) const;  // its times, and its bytes or its size
  void mark_content_dirty(const ObjectPtr& object) const;  // ... and its times stay

  // What a seal of a body of `size_bytes` takes of the volume.
  uint64_t room_for(uint64_t size_bytes) const;
  // Reserves so much; false: full.
  bool reserve_space(Object& object, uint64_t size_bytes) const;
  // For what fallocate promised, beside what is sealed or about to be; false: full. `may_wait`: for a call that waits where there is none yet.
  bool keep_room(Object& object, bool may_wait = false) const;
  void give_room_up(Object& object) const { parts_.space.release(std::exchange(object.kept_bytes, 0)); }

  // A body that did not fit is not left short or mixed under its name (invariant 7 of the store). At a flush others may still
  // write: then nothing goes back. Not while it is sealed.
  void undo_what_did_not_fit(const ObjectPtr& object, bool last_writer) const;

  // The seal under way has ended: its body is settled, or it is given up. Does what a last writer that closed meanwhile left to it.
  void end_seal(const ObjectPtr& object) const;
  // The seal was to move a body that can be read where it is later, perhaps: it stays there, and is clean. False: it was written to
  // meanwhile, or is to be moved in any case. The object is not locked.
  bool let_stay(const ObjectPtr& object) const;
  // The seal came to nothing: the content stays dirty, and is sealed again. The object is not locked.
  void abandon_seal(const ObjectPtr& object) const;

 private:
  const Parts parts_;
};

}  // namespace kvcachefs
