// Calls that leave more to be journaled than there was, new names and attributes, are refused where the volume is full. (That what they leave
// is written in time is seen to by RecordWaiters.)
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

// Thread-safe, no state of its own. Leaf locks are taken: any but such may be held.
class RoomForRecords {
 public:
  struct Parts {
    const Space& space;
    SpaceWaiters& space_waiters;
    const VolumeRefusals& refusals;
    Counters& counters;
    std::function<bool()> may_get_room;  // asked where there is none: chunks may be evicted, or other nodes make room
  };
  explicit RoomForRecords(Parts parts) : parts_(std::move(parts)) {}

  bool is_full() const { return parts_.space.free_bytes() == 0 && !parts_.may_get_room(); }
  // The answer to a call that is refused because it is; `what` was to be recorded.
  std::unexpected<Error> refuse(const std::string& what);

 private:
  const Parts parts_;
};

}  // namespace kvcachefs
