// The volume as a cache: decides when and how much to evict for room (Evictor chooses, EvictGuard checks once more), and evicts as an
// unlink would, so that the space comes back by invariant 6 of the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "store/api/counters.h"
#include "store/api/gone_names.h"
#include "store/api/live_options.h"
#include "store/base/clock.h"
#include "store/base/work_queue.h"
#include "store/index/index.h"
#include "store/space/space.h"
#include "store/tree/tree.h"
#include "store/upkeep/evict_guard.h"
#include "store/upkeep/evict_walk.h"
#include "store/upkeep/evictor.h"
#include "store/upkeep/reclaimer.h"
#include "store/upkeep/refused_eviction.h"
#include "store/upkeep/shared_capacity.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Used by the keeper's thread only, except stop() and the methods marked "any thread". Call with no lock held.
class Eviction {
 public:
  struct Parts {
    Evictor& evictor;
    Tree& tree;
    const Index& index;
    Space& space;
    const VolumeRefusals& refusals;
    const GoneNames& gone;
    const Counters& counters;
    const LiveOptions& options;
    Clock& clock;
    Wakeup& keeper;
    std::function<void()> journal_names;   // returns once the pending names are journaled, or could not be
    std::function<void()> drain_for_room;  // the same for bodies that were just written
    std::function<bool()> has_peers;       // whether the volume has other nodes
    bool read_only;
    SharedCapacity* shared = nullptr;  // null: this node does not share the volume
    std::function<bool()> awaits_sync = [] { return false; };  // bytes were written since the last sync, and that one succeeded. Any thread
  };
  explicit Eviction(Parts parts)
      : parts_(std::move(parts)), guard_(parts_.clock, &parts_.tree.temporary_names()), walk_({parts_.evictor, parts_.tree, parts_.index, parts_.clock, parts_.keeper}) {}

  // Tells the Evictor of one more piece of the existing names. Returns true if there was something to do.
  bool go_on_filling() { return walk_.go_on(/*to_the_end=*/false); }
  // Evicts before any call has to wait for room. Returns true if something went: it is journaled, and its space can be given back.
  bool evict_ahead();
  // The first step when calls wait for room. Returns true if enough space will come back once the names are journaled and the dead space
  // was given back. `pressure`: how many rounds some call has waited for without getting room.
  bool evict_for_room(uint64_t pressure);
  // Whether a call without room may get some by eviction. False in the pauses in which a volume that refuses writes is left alone, unless the
  // sync of the next round may end the pause: else calls would wait for one round after another, each with a sync that fails. Any thread.
  bool may_make_room() const;
  bool on() const { return parts_.evictor.on(); }
  // Evicts the unit of this object and the end of its chain, if the unit is worth at most `most_worth` times the last victims. Returns its
  // bytes.
  uint64_t give_up(ObjectId id, double most_worth);
  // From now on nothing is evicted. Any thread.
  void stop();

  // How many bytes a round makes room for, after some call has waited for `pressure` rounds without getting room.
  uint64_t room_wanted(uint64_t pressure);
  // `bytes` are dead in packs that are not worth emptying yet: they do not come back before more of those packs is dead.
  void note_unpunched(uint64_t bytes);
  // How many dead bytes to punch: until the low water mark is free, or until a round under that pressure has its room. All of them on a
  // volume with several nodes, because the others wait for the space.
  uint64_t bytes_to_punch_ahead() { return is_shared() ? UINT64_MAX : bytes_to_punch(water_marks().low); }
  uint64_t bytes_to_punch_for_room(uint64_t pressure) { return is_shared() ? UINT64_MAX : bytes_to_punch(room_wanted(pressure)); }
  // Takes note of the dead bytes that a reclaim left, or did not give back because they are still read, and of the ranges that it punched.
  // `read_by_peers_bytes` are dead but do not come back while another node has them open.
  void note_reclaimed(const Reclaimer::Outcome& outcome, uint64_t read_by_peers_bytes);
  // Dead bytes in ranges that are too short to be worth a call yet.
  uint64_t left_bytes() const { return left_bytes_; }
  // True if nothing was evicted for so long that short ranges are given back as well.
  bool is_quiet() const;
  // Takes note that a round which evicted something began at `begun_ns` and has now given back what it could.
  void note_round(int64_t begun_ns);

  // The file system has less free space than is to be kept free, whoever filled it: all nodes evict a part. State of the last step; any
  // thread.
  bool backing_is_short() const { return backing_is_short_.load(std::memory_order_relaxed); }

  // The free space that df shows. Any thread.
  uint64_t shown_free_bytes() const;

 private:
  struct WaterMarks {
    uint64_t high = 0, low = 0;  // bytes left free
  };
  bool is_shared() const { return parts_.shared != nullptr && parts_.shared->is_shared(); }
  uint64_t usable_bytes() const;
  WaterMarks water_marks();
  uint64_t share_to_evict(const WaterMarks& marks);
  uint64_t evict_for_others(uint64_t bytes);
  uint64_t most_left_bytes() const;
  uint64_t free_soon_bytes() const;
  uint64_t bytes_to_punch(uint64_t room_wanted_bytes) const;
  struct Evicted {
    uint64_t bytes = 0;
    bool enough = false;  // enough of these bytes, or of dead ones, comes back to be worth a wait
  };
  Evicted evict_until_free(uint64_t wanted_bytes);
  bool evict_from_one_that_refuses();
  uint64_t evict(uint64_t bytes, Evictor::Leases leases, bool waited_for);
  void evict_stranded();
  uint64_t evict_unit(const Evictor::Victim& victim, Evictor::Leases leases, std::vector<GoneName>& gone);
  void tell(std::vector<GoneName> gone);

  const Parts parts_;
  const EvictGuard guard_;
  EvictWalk walk_;
  RefusedEviction refused_;
  std::atomic<bool> stopping_{false}, backing_is_short_{false};
  int64_t last_ns_ = INT64_MIN / 2;  // time of the last eviction
  uint64_t left_bytes_ = 0, read_bytes_ = 0, unpunched_bytes_ = 0;
  bool leaves_short_ranges_ = false;  // the ranges punched last were short
  struct {
    int64_t at_ns = 0, round_ns = 200'000'000;  // time from the choice of victims until their space is free
    uint64_t written_bytes = 0;
    double bytes_per_ns = 0;
  } rate_;
  std::optional<int64_t> unmet_since_ns_;  // since when everything was leased, although a share for other nodes was to be evicted
};

}  // namespace kvcachefs
