// A round of SpaceWaiters that is held open, because other nodes may yet make room for its calls; and how long calls have waited so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "store/space/space_waiters.h"

namespace kvcachefs {

// Time since a wait began. Times are of the clock by which calls wait (base/running_clock.h).
class WaitingTime {
 public:
  void begin(int64_t now_ns) { if (!since_ns_) since_ns_ = now_ns; }  // no effect if it has begun
  void end() { since_ns_.reset(); }
  int64_t waited_ns(int64_t now_ns) const { return now_ns - since_ns_.value_or(now_ns); }

 private:
  std::optional<int64_t> since_ns_;
};

// Used by the keeper's thread only.
class HeldRound {
 public:
  // From now on the round is held. If it was held before, this was another try of it.
  void hold(const SpaceWaiters::Round& round, int64_t now_ns, uint64_t room_bytes) {
    waiting_.begin(now_ns);
    held_ = Held{round, now_ns, held_ ? std::min(held_->least_room_bytes, room_bytes) : room_bytes};
  }
  // The round ends, so it is not held any more. The time goes on: calls that go on waiting wait in the next round.
  void end() { held_.reset(); }
  // No call waits any more, or this node gave space back: the time begins anew.
  void restart_time() { waiting_.end(); }
  int64_t waited_ns(int64_t now_ns) const { return waiting_.waited_ns(now_ns); }

  bool is_held() const { return held_.has_value(); }
  // Of a held round only:
  const SpaceWaiters::Round& round() const { return held_->round; }
  int64_t tried_ns() const { return held_->tried_ns; }
  uint64_t least_room_bytes() const { return held_->least_room_bytes; }  // since it is held

 private:
  struct Held {
    SpaceWaiters::Round round;
    int64_t tried_ns = 0;
    uint64_t least_room_bytes = 0;
  };
  std::optional<Held> held_;
  WaitingTime waiting_;
};

}  // namespace kvcachefs
