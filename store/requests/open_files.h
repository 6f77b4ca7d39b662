// Open and close, and the durability that they promise.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "store/api/counters.h"
#include "store/api/live_options.h"
#include "store/api/options.h"
#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/cache/body_cache.h"
#include "store/cache/file_policy.h"
#include "store/chain/access_tracker.h"
#include "store/commit/unsaved_read_times.h"
#include "store/extent/extents.h"
#include "store/load/backing_files.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/object/handle.h"
#include "store/object/object.h"
#include "store/requests/in_place_changes.h"
#include "store/requests/name_versions.h"
#include "store/space/discards.h"
#include "store/space/space.h"
#include "store/tree/tree.h"
#include "store/writeback/urgent_lane.h"

namespace kvcachefs {

// Thread-safe; no state of its own: the caller has the handles, and the object counts its opens. Callers hold no lock. Only open() blocks,
// on the backing file of a raw file.
class OpenFiles {
 public:
  struct Parts {
    Tree& tree;
    NameVersions& versions;
    AccessTracker& accesses;
    Extents& extents;
    Space& space;
    Discards& discards;
    const BodyChanges& changes;
    DirtyQueue& dirty;
    BodyCache& cache;
    MemoryFilePolicy& file_policy;
    BackingFiles& backing;
    InPlaceChanges& in_place;
    UnsavedReadTimes& unsaved_reads;
    UrgentLane& urgent;
    Counters& counters;
    const LiveOptions& options;
    const RequestClock& clock;
    ReadTimes read_times;
    bool read_only;
  };
  explicit OpenFiles(Parts parts) : parts_(parts) {}

  // As in store.h.
  Result<Handle*> open(ObjectId id, const OpenRequest& request, const Caller& caller);
  void release(Handle* handle);
  static bool is_left_to_writer(const Handle* handle, uint64_t closer);
  void flush(Handle* handle, StatusCompletion done);
  void fsync(Handle* handle, StatusCompletion done);
  void keep_new(ObjectId id, StatusCompletion done);
  void sync_directory(ObjectId directory, StatusCompletion done);

 private:
  void truncate_at_open(const ObjectPtr& object);
  void note_read_time(Object& object, const OpenRequest& request);  // the object is locked
  Status open_raw_file(const ObjectPtr& object);
  std::vector<ObjectPtr> bodies_to_sync(const ObjectPtr& object);
  std::vector<ObjectPtr> bodies_of_names_in(ObjectId directory);

  const Parts parts_;
};

inline bool OpenFiles::is_left_to_writer(const Handle* handle, uint64_t closer) {
  const uint64_t writer = handle->writer;
  return writer != 0 && closer != 0 && writer != closer;
}

}  // namespace kvcachefs
