// Writes bodies from RAM to the volume: gives each body of a batch its place, writes it in large aligned pieces, and hashes it meanwhile.
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

// Thread-safe; no state of its own: each lane has its target. Blocks on the volume. Callers hold no lock, unless a method says
// otherwise.
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
    CommitQueue& commits;  // is told how much was written
    BodyChanges& changes;
    Space& space;
    DeadSpace& dead;
    const LiveOptions& options;
    Counters& counters;
    uint64_t extent_bytes;
  };
  explicit Sealer(Parts parts) : parts_(parts) {}

  enum class Promise : uint8_t { kKept, kMayEnd };  // the promise of fallocate, if there is no room for another version of the body
  // Takes a snapshot of the body. False: it is being sealed, is clean, or cannot be sealed now. Takes its lock; the Tree's may be held.
  bool begin_seal(const ObjectPtr& object, Promise promise, Snapshot& snapshot);
  // Writes the bodies to the volume. A body that fails is given up (its content stays dirty) and left out; `status` is the first error.
  std::vector<SealedBody> seal(std::vector<Snapshot> snapshots, PackTarget& target, Status& status);
  // At the end of a lane: closes its pack.
  void finish(PackTarget& target);
  // Memory for units that are read again to be sealed, one at a time. It never waits until others free memory: sealing is what frees it.
  // `writer`: that of the calling lane; null on the keeper, which releases one unit before it asks for the next.
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
  log::LastingFailure failure_;  // logs failed writes of bodies
};

}  // namespace kvcachefs
