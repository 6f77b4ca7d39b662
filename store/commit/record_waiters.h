// Calls that change names or attributes and find too much of that unwritten, or no room for it: they wait, or are refused.
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

// Thread-safe, without a lock of its own: those that wait are kept by RecordSpace and SpaceWaiters. Nothing blocks.
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
    const Backoff& upkeep;  // of the index and of checkpoints
    const Clock& clock;
  };
  explicit RecordWaiters(Parts parts) : parts_(parts) {}

  // A change that takes about so many bytes of records need not wait.
  bool has_room(uint64_t bytes) const;
  // `then` hears that the change can be made, or why it cannot; perhaps on another thread. `gives_back`: it frees space, and waits
  // only where much is unwritten. No lock held.
  void await_room(uint64_t bytes, bool gives_back, StatusCompletion then);
  // The same for an extended attribute of so many bytes with its name: also of those that are not journaled there may be too many, and what
  // some of them wait for may never come. After 5 s it goes on all the same, and is refused where it is set.
  bool has_room_for_xattr(uint64_t bytes) const { return parts_.records.has_room_for_xattrs(bytes) && has_room(bytes); }
  void await_room_for_xattr(uint64_t bytes, StatusCompletion then);
  // Something was written, or cannot be: those that wait look again.
  void resume();
  // More is in the journal or waits for the index than is to be: the keeper has to write, and did not fail a moment ago.
  bool want_upkeep() const;
  void note_written() const {
    if (want_upkeep()) parts_.keeper.wake();
  }
  // The end has begun: nobody waits any more. Those that do are answered with the next resume().
  void stop() { stopping_.store(true); }

 private:
  std::optional<Error> refused(bool gives_back) const;
  void await_xattrs(uint64_t bytes, int64_t until_ns, StatusCompletion then);

  const Parts parts_;
  std::atomic<uint64_t> waiting_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace kvcachefs
