// The volume as a cache: when something goes because room is needed (chosen by Evictor, looked at once more by EvictGuard), how much,
// and how: as by an unlink, so that its space comes back by invariant 6 of the store.
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

// The keeper's thread alone, but for stop() and shown_free_bytes(). No lock held.
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
    std::function<void()> journal_names;   // returns once the names that wait are journaled, or could not be
    std::function<void()> drain_for_room;  // the same of what was just written
    std::function<bool()> has_peers;       // other nodes
    bool read_only;
    SharedCapacity* shared = nullptr;  // null: the volume is this node's alone
  };
  explicit Eviction(Parts parts)
      : parts_(std::move(parts)), guard_(parts_.clock), walk_({parts_.evictor, parts_.tree, parts_.index, parts_.clock, parts_.keeper}) {}

  // A piece of what the Evictor is to be told of the names that are there. True if there was something to do.
  bool go_on_filling() { return walk_.go_on(/*to_the_end=*/false); }
  // Before any call waits for room. True: what went is journaled, and to be given back.
  bool evict_ahead();
  // First thing when calls wait for room. True if enough of it will come back once the names are journaled, and what is dead was
  // given back. `pressure`: so many rounds some call has waited and found none.
  bool evict_for_room(uint64_t pressure);
  bool on() const { return parts_.evictor.on(); }
  // The unit of this object goes, where it is worth no more than so many times what went last, and the end of its chain. Returns its bytes.
  uint64_t give_up(ObjectId id, double most_worth);
  // From now on nothing is evicted. Any thread.
  void stop();

  // So much should be there to be reserved: what a round makes room for, where some call has waited for so many of them and found none.
  uint64_t room_wanted(uint64_t pressure);
  // Dead, in packs that are not worth being emptied yet: it does not come back before more of them is dead.
  void note_unpunched(uint64_t bytes);
  // How much of what is dead is to be punched: until the low mark is free, or what a round under that pressure makes room for.
  // On a volume with several nodes all of it: the others wait for it.
  uint64_t bytes_to_punch_ahead() { return is_shared() ? UINT64_MAX : bytes_to_punch(water_marks().low); }
  uint64_t bytes_to_punch_for_room(uint64_t pressure) { return is_shared() ? UINT64_MAX : bytes_to_punch(room_wanted(pressure)); }
  // What that left, and which ranges it punched. `read_by_peers_bytes` are dead, and do not come back for as long as another node has
  // them open.
  void note_reclaimed(const Reclaimer::Outcome& outcome, uint64_t read_by_peers_bytes);
  // Dead, in ranges too short to be worth a call yet.
  uint64_t left_bytes() const { return left_bytes_; }
  // Nothing was evicted for so long that such ranges are given back as well.
  bool is_quiet() const;
  // A round that evicted something began then, and has given back what it could.
  void note_round(int64_t begun_ns);

  // The file system has less free than is to be left, whoever filled it: all nodes give some of theirs. As of the last step; any thread.
  bool backing_is_short() const { return backing_is_short_.load(std::memory_order_relaxed); }

  // What df shows as free. Any thread.
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
    bool enough = false;  // comes back, of these or of what was dead, to be worth a wait
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
  int64_t last_ns_ = INT64_MIN / 2;  // when anything was evicted
  uint64_t left_bytes_ = 0, read_by_peers_bytes_ = 0, unpunched_bytes_ = 0;
  bool leaves_short_ranges_ = false;  // those that were punched last were short
  struct {
    int64_t at_ns = 0, round_ns = 200'000'000;  // how long it takes from a choice until its room is there
    uint64_t written_bytes = 0;
    double bytes_per_ns = 0;
  } rate_;
  std::optional<int64_t> unmet_since_ns_;  // a share of what others lack was to go, and all was leased
};

}  // namespace kvcachefs
