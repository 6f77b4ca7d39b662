// One thread for what must happen now and then. Syncs what was written, lets the index catch up, gives space back, makes room for calls
// that wait for it, and takes work off the threads that must not block.
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
#include "store/upkeep/orphan_sweep.h"
#include "store/upkeep/volume_watch.h"
#include "store/writeback/sealer.h"

namespace kvcachefs {

// Its own thread, or whoever calls step() where it has none. No lock held. Blocks on the volume.
class Keeper {
 public:
  struct Parts {
    Checkpointer& checkpointer;
    Eviction& eviction;
    OrphanSweep& sweep;
    VolumeWatch& watch;
    Drainer& drainer;
    WorkQueue& work;
    Wakeup& wakeup;  // the next step begins at once; at most a second later in any case
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
    Backoff& backoff;  // of upkeep that fails
    Counters& counters;
    Clock& clock;
    SharedCapacity* shared = nullptr;  // null: the volume is this node's alone
    const Clock* running = nullptr;    // by which calls wait for others (base/running_clock.h); null: `clock`
    Compactor* compactor = nullptr;    // null: the volume punches holes
  };
  explicit Keeper(Parts parts) : parts_(parts) {}
  ~Keeper() { stop(); }

  void start();
  void ask_to_stop();  // stop() without waiting for it
  void stop();
  // One turn; with `force` all that may be done is done. True: something was.
  bool step(bool force);

  // The next step gives back everything that is dead, which syncs everything: for a call that waits for space. Any thread; with any
  // lock held.
  void want_reclaim();
  // What was accepted is in the committed index when this returns, or health says why not.
  void index_now() { note_upkeep(parts_.checkpointer.index_point(), parts_.clock.monotonic_ns()); }
  // What clients had a moment ago and may ask for again is let go of, where its time is over. `all`: also what lingers still, for its
  // room is wanted. What a call found that is being repeated stays until then, for it is not told to look again a second time.
  void end_lingering(bool all = false);
  // Before the first step: the index was committed just now.
  void begin() { last_index_point_ns_ = parts_.clock.monotonic_ns(); }

 private:
  void run();
  bool make_room();
  bool await_claim(const SpaceWaiters::Round& round);
  bool hold_round(const SpaceWaiters::Round& round);
  void hold_for_others();
  bool give_up_on_peers(uint64_t held_bytes, int64_t waited_ns);
  void hold(const SpaceWaiters::Round& round);
  bool compact();
  bool mend_index();
  bool sweep_packs();
  void journal_read_times(int64_t now_ns);
  void note_upkeep(const Status& status, int64_t now_ns);
  int64_t running_ns() const { return (parts_.running != nullptr ? *parts_.running : parts_.clock).monotonic_ns(); }

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> reclaim_wanted_{false};
  struct HeldRound {
    SpaceWaiters::Round round;
    int64_t tried_ns = 0;     // the last time that it ended so
    uint64_t room_bytes = 0;  // the least that there was since
  };
  std::optional<HeldRound> held_round_;  // calls wait for places that are held for peers, or for room that these make
  std::optional<int64_t> held_since_ns_;  // rounds are held, one behind the other, and this node gave nothing back
  std::optional<int64_t> others_wait_since_ns_;  // other nodes lack room, what went here is held for peers, and nothing was given back
  uint64_t reclaimed_while_held_ = 0;
  std::string told_;  // the last error of upkeep
  int64_t told_ns_ = 0;
  int64_t let_go_ns_ = 0;
  int64_t last_index_point_ns_ = 0, verified_again_ns_ = 0;
  uint64_t hopes_at_index_point_ = 0;
  uint64_t index_rebuilds_ = 0;  // that were seen
  std::thread thread_;
};

}  // namespace kvcachefs
