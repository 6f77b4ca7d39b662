// This node's part of a capacity that several nodes share. Holds Space to the claim of ClaimHolder, and tells the code that makes room how
// much to evict for all nodes together and whether room is worth waiting for.
//
// Thread-safe. The thread that follows the peers calls the methods of ClaimUser; the keeper's thread calls the rest, unless stated
// otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "store/api/counters.h"
#include "store/api/live_options.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/peers/claim_holder.h"
#include "store/peers/index_room.h"
#include "store/space/space.h"
#include "store/space/space_waiters.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

class SharedCapacity final : public ClaimUser {
 public:
  struct Parts {
    Space& space;
    const Evictor& evictor;
    const SpaceWaiters& waiters;
    const Counters& counters;
    const LiveOptions& options;
    const Clock& clock;
    const Clock& running;              // the clock by which calls wait (base/running_clock.h)
    std::function<void()> want_claim;  // makes the thread of the peers look at the claim. Any lock may be held
    std::function<void()> make_room;   // makes the keeper begin a step
    bool grows = true;  // false: stores nothing (read-only, gc, or tended, which may evict): claims nothing ahead; others ignore its options
  };
  explicit SharedCapacity(Parts parts);

  OwnFigures figures(bool alone) override;
  uint64_t lower_claim(uint64_t bytes) override { return parts_.space.lower_claim(bytes); }
  void sink_claim(uint64_t bytes) override { parts_.space.sink_claim(bytes); }
  void raise_claim(uint64_t bytes) override;
  void hold_until(int64_t boot_ns) override;
  void follow(const ClaimPlan& plan, bool alone) override;

  // True if other nodes are known. Any thread.
  bool is_shared() const { return shared_.load(std::memory_order_relaxed); }
  // True if a call without room may get some that this node cannot make: its claim may be raised, or others make room. Any thread.
  bool may_get_room() const;
  // ... others may make room, or the volume is waited for.
  bool others_may_make_room() const { return (is_shared() || parts_.space.claim_has_lapsed()) && may_get_room(); }
  ClaimPlan plan() const;
  // Room for `growth_bytes` by which the indexes of peers are expected to grow. Any thread.
  IndexRoom index_room(uint64_t growth_bytes) const;

  // Space came back: if others lack it, this node gives it up now instead of a second later.
  void gave_back() { if (parts_.space.claim_sinks()) parts_.want_claim(); }
  // Takes the bytes that this node is to evict now for all nodes together; returned once. It is set again a second later.
  uint64_t take_share();
  // Answers for calls that wait for room.
  enum class Room : uint8_t {
    kClaimed,  // there is more room than when they began
    kAwaited,  // there may be room in a moment: make_room is called then; evict nothing meanwhile
    kOwn,      // there is only the room that this node makes
    kNone,     // the claim has lapsed and could not be renewed for long: room made here does not help them
  };
  void stop_waiting();  // the calls stopped waiting for another reason
  // Calls have waited long enough for room from others: until that state changes, or for a while, no call waits for it.
  void lose_patience();
  Room look_for_room(bool goes_on);  // `goes_on`: the same calls wait as the last time

 private:
  const Parts parts_;
  bool claims_more() const;
  bool is_impatient() const;
  std::atomic<bool> shared_{false}, awaited_{false};
  std::atomic<uint64_t> raises_{0}, steps_{0};
  std::atomic<int64_t> wanted_ns_{INT64_MIN / 2}, impatient_ns_{INT64_MIN / 2};

  // Of the thread of the peers:
  int64_t rated_ns_ = 0, aged_ns_ = INT64_MIN / 2, share_ns_ = INT64_MIN / 2;
  uint64_t written_bytes_ = 0, written_per_s_ = 0, lacking_bytes_ = 0, raised_bytes_ = 0, lacking_at_raise_ = 0, lacking_at_reclaimed_ = 0;
  BytesByAge by_age_{};

  // Of the keeper's:
  struct Waiting {
    int64_t since_ns = 0;
    uint64_t raises = 0, steps = 0;
  };
  std::optional<Waiting> waiting_;

  mutable LeafMutex mutex_;  // a leaf; guards:
  ClaimPlan plan_;
  uint64_t share_bytes_ = 0;
};

}  // namespace kvcachefs
