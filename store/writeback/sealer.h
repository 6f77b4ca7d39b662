// RAM to volume: each body of a batch gets its place and is written in large aligned pieces, hashed while the writes are under way.
#pragma once

#include <cstdint>
#include <vector>

#include "store/api/counters.h"
#include "store/api/live_options.h"
#include "store/base/lasting_failure.h"
#include "store/cache/body_cache.h"
#include "store/commit/commit_queue.h"
#include "store/commit/quarantine.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/load/body_reader.h"
#include "store/object/body_changes.h"
#include "store/object/snapshot.h"
#include "store/space/dead_space.h"
#include "store/space/space.h"
#include "store/tree/tree.h"
#include "store/volume/volume.h"
#include "store/writeback/body_writer.h"
#include "store/writeback/pack_target.h"

namespace kvcachefs {

// Thread-safe; no state of its own: each lane has its target. Blocks on the volume; called with no lock held, where nothing else is
// said.
class Sealer {
 public:
  struct Parts {
    Volume& volume;
    Extents& extents;
    BodyReader& reader;
    BodyCache& cache;
    Tree& tree;
    Index& index;
    Quarantine& quarantine;
    CommitQueue& commits;  // hears how much was written
    BodyChanges& changes;
    Space& space;
    DeadSpace& dead;
    const LiveOptions& options;
    Counters& counters;
    uint64_t extent_bytes;
  };
  explicit Sealer(Parts parts) : parts_(parts) {}

  enum class Promise : uint8_t { kKept, kMayEnd };  // of fallocate, where there is no room for another version of the body
  // Takes the body as it is. False: it is being sealed, is clean, or cannot be sealed now. Takes its lock; the Tree's may be held.
  bool begin_seal(const ObjectPtr& object, Promise promise, Snapshot& snapshot);
  // Puts the bodies on the volume. What fails is given up (its content stays dirty) and left out; `status` is then the first error.
  std::vector<SealedBody> seal(std::vector<Snapshot> snapshots, PackTarget& target, Status& status);
  // At the end of a lane: its pack takes no more.
  void finish(PackTarget& target);
  // Memory for what is read again to be sealed, a unit at a time: it gives memory back, and must not wait until others do. `writer`:
  // of the lane that calls; null on the keeper, where one unit is let go of before the next.
  BodyReader::Memory memory_to_seal(BodyWriter* writer);

 private:
  struct Plan;
  Status place_body(Plan& plan, PackTarget& target);
  Status open_target(PackTarget& target, uint64_t room);
  bool size_ahead(File& file, uint64_t bytes);
  void close_target(PackTarget& target);
  void cut_closed(PackTarget& target);
  Status write_body(Plan& plan, BodyWriter& writer);
  Status finish_solo(Plan& plan);
  bool same_bytes_as_replaced(Plan& plan, BodyWriter& writer);
  void undo_write(Plan& plan);

  const Parts parts_;
  log::LastingFailure failure_;  // of writes of bodies
};

}  // namespace kvcachefs
