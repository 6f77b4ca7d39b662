// Detects files that change in place: they are locked, appended to, changed in part, or rewritten again and again. The kernel may not
// read such a file past the daemon: its readers would not see the changes. All but the rewritten ones are no chunks, and are not
// evicted; a chunk that its client stored again under its name, with O_TRUNC or over the old bytes, still is one. A file that was
// appended to or changed in part while it was filled, before it was renamed or left RAM (`patched`: a log, a small database, a header
// written last), is evicted only if nothing else is left: some clients may write chunks that way. The verdict is kept with the
// attributes of the object, so that it survives a remount.
#pragma once

#include <cstdint>

#include "store/api/request_types.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/object/handle.h"
#include "store/object/in_place_mark.h"
#include "store/object/object.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Thread-safe; no state of its own: the findings are kept in the object and its handles. None blocks.
class InPlaceChanges {
 public:
  struct Parts {
    const BodyChanges& changes;
    const Space& space;
    DirtyQueue& dirty;
    bool read_only;
  };
  explicit InPlaceChanges(Parts parts) : parts_(parts) {}

  // Caller holds the lock of the object:
  // The weight of the first change that an open for this request will make; the Tree is locked as well.
  static uint8_t weight_of(const Tree::View&, const Object& object, const OpenRequest& request);
  // Bytes or size are about to change.
  void note_change(const ObjectPtr& object, Handle* handle);
  void note_written(Handle* handle, uint64_t offset, uint64_t length);
  // The handle is about to be closed. To judge here is early enough: a file that is open is not evicted.
  void judge(const Handle& handle);

  // Caller holds no lock:
  // For truncate(2) by path.
  void note_change_by_path(const ObjectPtr& object, uint64_t size_bytes);
  // As in store.h.
  void note_locked(Handle* handle);
  // Pages of a mapping tell nothing of how a file is filled: the kernel writes them at any time, some several times.
  void note_page_written(Handle* handle);
  bool closes_quietly(Handle* handle);

 private:
  // Caller holds the lock of the object.
  void mark(const ObjectPtr& object);
  void put_mark(const ObjectPtr& object, InPlace how);
  void put_patched(const ObjectPtr& object, bool patched);
  void drop_first_writes(const ObjectPtr& object);
  void judge_first_writes(const ObjectPtr& object);

  const Parts parts_;
};

}  // namespace kvcachefs
