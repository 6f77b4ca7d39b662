// One thread for periodic work. It syncs written data, commits the index, gives space back, makes room for calls that wait for it, and runs
// work for threads that must not block.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "store/api/counters.h"
#include "store/api/probe_counts.h"
#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/health.h"
#include "store/base/work_queue.h"
#include "store/cache/body_cache.h"
#include "store/cache/page_warmer.h"
#include "store/cache/resumer.h"
#include "store/commit/commit_queue.h"
#include "store/commit/record_waiters.h"
#include "store/load/unverified_bodies.h"
#include "store/memory/memory_file.h"
#include "store/memory/pool.h"
#include "store/readahead/read_ahead.h"
#include "store/space/space_waiters.h"
#include "store/tree/stale_opens.h"
#include "store/tree/tree.h"
#include "store/upkeep/checkpointer.h"
#include "store/upkeep/compactor.h"
#include "store/upkeep/eviction.h"
#include "store/upkeep/held_round.h"
#include "store/upkeep/orphan_sweep.h"
#include "store/upkeep/volume_watch.h"
#include "store/writeback/sealer.h"

namespace kvcachefs {

// Used by its own thread, or by the caller of step() where it has none. Call with no lock held. Blocks on the volume.
class Keeper {
 public:
  struct Parts {
    Checkpointer& checkpointer;
    Eviction& eviction;
    OrphanSweep& sweep;
    VolumeWatch& watch;
    Drainer& drainer;
    WorkQueue& work;
    Wakeup& wakeup;  // wakes the next step; without it the next step begins at most a second later
    SpaceWaiters& space_waiters;
    RecordWaiters& record_waiters;
    DeadSpace& dead;
    Space& space;
    Index& index;
    IndexRebuild& index_rebuild;
    Tree& tree;
    StaleOpens& stale_opens;
    CommitQueue& commits;
    UnsavedReadTimes& read_times;
    UnverifiedBodies& unverified;
    Sealer& sealer;
    ReadAhead& read_ahead;
    Resumer& resumer;
    BodyCache& cache;
    PageWarmer& warmer;
    MemoryFiles& files;
    const MemoryPool& pool;
    ProbeCounts& probes;
    Health& health;
    Backoff& backoff;  // for upkeep that fails
    Counters& counters;
    Clock& clock;
    SharedCapacity* shared = nullptr;  // null: the volume is this node's alone
    const Clock* running = nullptr;    // the clock by which calls wait for other nodes (base/running_clock.h); null: `clock`
    Compactor* compactor = nullptr;    // null: the volume punches holes
  };
  explicit Keeper(Parts parts) : parts_(parts) {}
  ~Keeper() { stop(); }

  Status start();
  void ask_to_stop();  // stop() without waiting for it
  void stop();
  // Does one turn; with `force` does everything that may be done. Returns true if something was done.
  bool step(bool force);

  // The next step gives back everything that is dead, which syncs everything: for a call that waits for space. Any thread, with any lock
  // held.
  void want_reclaim();
  // Its thread lets go of mapped pages of the index at once. Any thread, with any lock held but a leaf.
  void want_let_go();
  // Returns once accepted changes are in the committed index, or health reports why not.
  void index_now() { note_upkeep(parts_.checkpointer.index_point(), parts_.clock.monotonic_ns()); }
  // Releases objects that clients had a moment ago and may ask for again, once their time is over. `all`: the others too, because their
  // room is wanted. An object found by a call that is being repeated stays until then, because that call is not told to look again a second
  // time.
  void end_lingering(bool all = false);
  // Call before the first step: the index was just committed.
  void begin() { last_index_point_ns_ = parts_.clock.monotonic_ns(); }

 private:
  void run();
  bool make_room();
  bool await_claim(const SpaceWaiters::Round& round);
  bool hold_round(const SpaceWaiters::Round& round, bool gave_back);
  void hold_for_others();
  bool give_up_on_peers(uint64_t held_bytes, int64_t waited_ns);
  void hold(const SpaceWaiters::Round& round) { held_.hold(round, running_ns(), parts_.space.room_bytes()); }
  void end_round(const SpaceWaiters::Round& round, bool gave_back, bool goes_on = false);
  bool compact();
  bool mend_index();
  bool sweep_packs();
  void journal_read_times(int64_t now_ns);
  void note_upkeep(const Status& status, int64_t now_ns);
  int64_t running_ns() const { return (parts_.running != nullptr ? *parts_.running : parts_.clock).monotonic_ns(); }

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> reclaim_wanted_{false}, let_go_wanted_{false};
  HeldRound held_;             // calls wait for places held for peers, or for room that peers make
  WaitingTime others_waiting_;  // others lack room, places here are held for peers, and nothing was given back
  uint64_t reclaimed_while_held_ = 0;
  std::string told_;  // the last upkeep error that was logged
  int64_t told_ns_ = 0;
  int64_t let_go_ns_ = 0;
  int64_t last_index_point_ns_ = 0, verified_again_ns_ = 0;
  uint64_t hopes_at_index_point_ = 0;
  uint64_t index_rebuilds_ = 0;  // rebuilds already seen
  std::thread thread_;
};

}  // namespace kvcachefs
