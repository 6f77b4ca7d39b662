// Refuses calls that add to what has to be journaled (new names and attributes) when the volume is full. (RecordWaiters bounds how much of
// that is not journaled yet.)
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "store/api/counters.h"
#include "store/base/result.h"
#include "store/space/space.h"
#include "store/space/space_waiters.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Thread-safe, no state of its own. It takes leaf locks: callers may hold any lock but a leaf.
class RoomForRecords {
 public:
  struct Parts {
    const Space& space;
    SpaceWaiters& space_waiters;
    const VolumeRefusals& refusals;
    Counters& counters;
    std::function<bool()> may_get_room;  // asked if there is no room: may chunks be evicted, or other nodes make room?
  };
  explicit RoomForRecords(Parts parts) : parts_(std::move(parts)) {}

  bool is_full() const { return parts_.space.free_bytes() == 0 && !parts_.may_get_room(); }
  // The answer to a call that is refused because the volume is full; `what` names the change that was to be recorded.
  std::unexpected<Error> refuse(const std::string& what);

 private:
  const Parts parts_;
};

}  // namespace kvcachefs
