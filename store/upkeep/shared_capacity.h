// The capacity of a volume that several nodes share, for this one: Space is held to the claim that ClaimHolder has, and what is to be evicted
// for all nodes together, or can be waited for, is told to those who make room.
//
// Thread-safe. What ClaimUser says is called by the thread that follows the peers, the rest by the keeper's, where no other is named.
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
    const Clock& running;              // by which calls wait (base/running_clock.h)
    std::function<void()> want_claim;  // the thread of the peers looks at the claim. Any lock may be held
    std::function<void()> make_room;   // the keeper begins a step
    bool grows = true;  // false: nothing is stored (read-only, put in order by gc, or tended: that may evict): nothing is claimed ahead, and others do not go by its options
  };
  explicit SharedCapacity(Parts parts);

  OwnFigures figures(bool alone) override;
  uint64_t lower_claim(uint64_t bytes) override { return parts_.space.lower_claim(bytes); }
  void sink_claim(uint64_t bytes) override { parts_.space.sink_claim(bytes); }
  void raise_claim(uint64_t bytes) override;
  void hold_until(int64_t boot_ns) override;
  void follow(const ClaimPlan& plan, bool alone) override;

  // Other nodes are known. Any thread.
  bool is_shared() const { return shared_.load(std::memory_order_relaxed); }
  // A call that finds no room may get some, although this node can make none: its claim is raised, or the others make room. Any thread.
  bool may_get_room() const;
  // ... the second of these, or the volume is waited for.
  bool others_may_make_room() const { return (is_shared() || parts_.space.claim_has_lapsed()) && may_get_room(); }
  ClaimPlan plan() const;
  // `growth_bytes` of what was told to come are of indexes of peers. Any thread.
  IndexRoom index_room(uint64_t growth_bytes) const;

  // Space came back: where others lack it, it is given up now, and not a second later.
  void gave_back() { if (parts_.space.claim_sinks()) parts_.want_claim(); }
  // What this node is to evict now for all together; once. It is told anew a second later.
  uint64_t take_share();
  // For calls that wait for room.
  enum class Room : uint8_t {
    kClaimed,  // there is more of it than when they began
    kAwaited,  // there may be in a moment: make_room is called then, and nothing is to be evicted meanwhile
    kOwn,      // nothing but what this node makes
    kNone,     // the claim has lapsed and could not be told anew for long: what this node makes is of no use to them
  };
  void stop_waiting();  // they wait no more, for another reason than this
  // Calls have waited for long enough for what others were to give: until something of that changes, or for a while, none waits for it.
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
  uint64_t written_bytes_ = 0, written_per_s_ = 0, lacking_bytes_ = 0, lacking_at_raise_ = 0, lacking_at_reclaimed_ = 0;
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
