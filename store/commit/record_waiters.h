// Calls that change names or attributes, and find too many unwritten changes or no room: they wait, or are refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "store/api/request_types.h"
#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/health.h"
#include "store/base/work_queue.h"
#include "store/cache/resumer.h"
#include "store/object/dirty_queue.h"
#include "store/space/record_space.h"
#include "store/space/space.h"
#include "store/space/space_waiters.h"

namespace kvcachefs {

// Thread-safe, without a lock of its own: RecordSpace and SpaceWaiters keep the waiting calls. Nothing blocks.
class RecordWaiters {
 public:
  struct Parts {
    RecordSpace& records;
    Space& space;
    SpaceWaiters& space_waiters;
    DirtyQueue& dirty;
    Resumer& resumer;
    Wakeup& keeper;
    const Health& health;
    const Backoff& upkeep;  // for the index and checkpoints
    const Clock& clock;
  };
  explicit RecordWaiters(Parts parts) : parts_(parts) {}

  // True if a change with about so many bytes of records need not wait.
  bool has_room(uint64_t bytes, Growth growth = Growth::kFiles) const;
  // Calls `then`, perhaps on another thread, when the change can be made, or with the reason why it cannot. Growth::kNone: the change frees
  // space, and waits only if much is unwritten. If the index may have room again for a change that would be refused, the change waits for a commit of the
  // index, whatever that shows. Call with no lock held.
  void await_room(uint64_t bytes, Growth growth, StatusCompletion then);
  // The same for an extended attribute of so many bytes with its name. There may also be too many unjournaled attributes, and some may wait
  // for bodies that never come: after 5 s the call goes on all the same, and is refused where the attribute is set.
  bool has_room_for_xattr(uint64_t bytes) const { return parts_.records.has_room_for_xattrs(bytes) && has_room(bytes, Growth::kXattrs); }
  void await_room_for_xattr(uint64_t bytes, StatusCompletion then);
  // Records were written, or cannot be: the waiting calls check again.
  void resume();
  // True if the journal has too much, too much waits for the index, or a call waits for its commit: the keeper has to write, and did not fail a moment ago.
  bool want_upkeep() const;
  void note_written() const {
    if (want_upkeep()) parts_.keeper.wake();
  }
  // The unmount has begun: no call waits any more. The next resume() answers those that do.
  void stop() { stopping_.store(true); }

 private:
  std::optional<Error> refused(bool gives_back) const;
  void await_measured(uint64_t measurings, uint64_t bytes, Growth growth, StatusCompletion then);
  void await_written(uint64_t bytes, bool gives_back, StatusCompletion then);
  void await_xattrs(uint64_t bytes, int64_t until_ns, StatusCompletion then);

  const Parts parts_;
  std::atomic<uint64_t> waiting_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace kvcachefs
