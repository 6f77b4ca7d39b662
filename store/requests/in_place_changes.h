// Which files change where they are: what is locked, appended to, changed in part, or rewritten again and again. The kernel may not
// read such a file past the daemon, for its readers would not see what changes. Of these all but the last are no chunks, and are not
// evicted; a chunk that its client stored again under its name, with O_TRUNC or over the old bytes, still is one. What was appended to
// or changed in part by those who filled it, before it was renamed or left RAM (`patched`: a log, a small database, a header that is
// written last), is evicted only where nothing else is left: some clients may write chunks so. So is what was sized beforehand and, when
// all had closed it, written here and there, in less than half. What was found is kept with the attributes of the object, so that it
// holds after a remount.
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

// Thread-safe; no state of its own: what was found is with the object and its handles. None blocks.
class InPlaceChanges {
 public:
  struct Parts {
    const BodyChanges& changes;
    const Space& space;
    DirtyQueue& dirty;
    bool read_only;
  };
  explicit InPlaceChanges(Parts parts) : parts_(parts) {}

  // With the object locked:
  // What the first change by an open for this request will be; the Tree is locked as well.
  static uint8_t weight_of(const Tree::View&, const Object& object, const OpenRequest& request);
  // Bytes or size are about to change.
  void note_change(const ObjectPtr& object, Handle* handle);
  void note_written(Handle* handle, uint64_t offset, uint64_t length);
  // The handle is about to be closed. A file that is open is not evicted, so that it is early enough here.
  void judge(const Handle& handle);

  // With no lock held:
  // truncate(2) by path.
  void note_change_by_path(const ObjectPtr& object, uint64_t size_bytes);
  // As in store.h.
  void note_locked(Handle* handle);
  // The kernel writes pages of a mapping when it likes, some several times.
  void note_page_written(Handle* handle);
  bool closes_quietly(Handle* handle);

 private:
  // The object is locked.
  void mark(const ObjectPtr& object);
  void put_mark(const ObjectPtr& object, InPlace how);
  void put_patched(const ObjectPtr& object, bool patched);
  void judge_first_writes(const ObjectPtr& object);

  const Parts parts_;
};

}  // namespace kvcachefs
