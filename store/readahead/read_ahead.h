// Carries out the plans of the access tracker for reading ahead: reads whole bodies into RAM, neighbours on the volume in one read, as
// background I/O.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/descriptors.h"
#include "store/base/mutex.h"
#include "store/cache/file_mover.h"
#include "store/cache/file_policy.h"
#include "store/chain/access_tracker.h"
#include "store/load/backing_files.h"
#include "store/load/loader.h"
#include "store/readahead/kernel_ahead.h"
#include "store/readahead/read_ahead_queue.h"

namespace kvcachefs {

// Thread-safe. The work is done by one thread, kvc-prefetcher, or by threads that help; four more (kvc-kernel) read files into the page
// cache. Without threads of its own the owner calls step().
class ReadAhead final : private ArrivalSink {
 public:
  struct Parts {
    AccessTracker& accesses;
    Tree& tree;
    Loader& loader;
    Extents& extents;
    const MemoryPool& pool;
    const MemoryFiles& files;
    const MemoryFilePolicy& policy;
    BodyCache& cache;
    FileMover& mover;
    BackingFiles& backing;
    Counters& counters;
    RequestClock& clock;
    bool on_network;  // the volume
  };
  explicit ReadAhead(Parts parts);
  ~ReadAhead();

  Status start();
  void stop();  // ends the threads
  // Takes in the reads that were left to a helper. Called after stop(), once the volume has answered everything.
  void finish();
  // Drops reads that were held back or not taken in. Called at the very end, when no thread uses this any more, while the pools that
  // their memory counts in still exist.
  void give_up();

  // There may be something to plan, or room for queued loads. Never blocks.
  void kick();
  // From hold() to release() the clock stands still for this thread (RequestClock), the AccessTracker only notes its accesses, and kicks of the
  // prefetcher are delayed. resume(), which ends that, too, makes up for it. Call resume() with no lock held.
  void hold();
  void release();
  void resume();
  // A reader wants a body now, which may be queued: it and the body that follows it go first. The reader's own read does not wait for the
  // queue. Ends a hold(), as the answer comes later. Call before Loader::load(), with no lock held.
  void note_demand(ObjectId id);
  // Reads a queued body that will lie in a memory file now: an open of it is about to wait for that.
  void hurry_into_file(const ObjectPtr& object);
  KernelAhead& kernel() { return kernel_; }

  // Does all that can be done now. True: it did something.
  bool step();

  // A thread that polls for requests does one piece of this work in a pause. Until leave_off() it takes over all work that is short and
  // cannot block. True: there may be more at once. Never blocks.
  bool help();
  void leave_off();

 private:
  struct Waiter;
  struct Lacking;
  struct Begun {  // a body of which the first units are being or have been read ahead
    std::shared_ptr<Waiter> waiter;
    size_t next_unit = 0;
  };
  // Reads that are held back until their neighbours come.
  struct Held {
    LoadJobs jobs;
    uint64_t bytes = 0;
    int64_t begun_ns = 0;  // the same for all of them; sending them takes time
    uint32_t run = 0;      // of the first
    bool mixed = false;    // there are reads of other runs
    bool awaited = false;  // a request waits for them
    bool urgent = false;   // a reader is right behind the first

    void note(const ReadAheadQueue::Item& item);
    uint64_t enough() const;
  };
  // A thread that polls takes no larger bodies: to verify one would keep it from its requests for too long.
  static constexpr uint64_t kHelpedBytes = 128 * kKiB;
  enum class Body : uint8_t { kDone, kPart, kNoMemory, kNotHere };
  enum class By : uint8_t { kThread, kHelper };  // a helper takes only small bodies, and work that cannot block
  enum class Piece : uint8_t { kNothing, kDone };

  // --- ArrivalSink
  void arrived(std::unique_ptr<ArrivedRead> read) override;
  void ahead_ended(uint64_t bytes) override;

  void run();
  void run_kernel();
  void wake();
  uint64_t limit_bytes() const;
  uint64_t free_bytes();
  std::shared_ptr<Waiter> make_waiter(ObjectId id, int64_t begun_ns);
  static Lacking lacking(Object& object, size_t first, uint64_t room_bytes);
  std::optional<SkipReason> leave_to_kernel(ObjectId id, uint64_t size_bytes);
  void promote(ObjectId id);
  bool leave_to_helper(std::unique_ptr<ArrivedRead>& read);

  // Caller holds turn_, for the methods from here on.
  void start_round();
  Piece piece(By by);
  Piece begin_queued(By by);
  Piece plan_some();
  Piece submit_held();
  void load(ReadAheadQueue::Item item, By by);
  Body read_body(const ReadAheadQueue::Item& item, By by, LoadJobs& jobs, uint64_t& bytes);
  void cancel(ObjectId id);
  void end(ObjectId id, SkipReason reason);
  bool help_on(bool deadline);
  Piece take_in_arrived();

  const Parts parts_;
  KernelAhead kernel_;
  std::atomic<uint64_t> in_flight_bytes_{0};  // memory of reads under way; a body in a file of its own counts at least limit / most_files_
  const uint64_t most_files_ = descriptor_shares().open_extents;  // open at a time
  std::atomic<bool> helper_due_{false};       // there may be work for a helper; set after that work is visible
  std::atomic<bool> helper_there_{false};     // copy of helped_ that is read without the lock
  std::atomic<int64_t> helper_deadline_ns_{INT64_MAX};  // of a helper's last plan, since the prefetcher sleeps

  LeafMutex mutex_;  // a leaf. Guards the members down to turn_
  ConditionVariable ready_;
  ReadAheadQueue queue_;
  bool kicked_ = false, stopping_ = false;
  bool helped_ = false;        // a thread that polls does the short work
  bool for_thread_ = false;    // ... but the next piece is for the prefetcher
  bool thread_works_ = false;  // the prefetcher is working
  std::deque<std::unique_ptr<ArrivedRead>> arrived_;  // reads left to a helper

  // Held for one piece of work at a time, by the prefetcher, a helper (which only tries the lock) or step(). Comes before all other locks,
  // and is held while an extent is opened; no request of a client ever waits for it. Guards the rest.
  Mutex<LockRank::kTurn> turn_;
  std::unordered_map<ObjectId, Begun> begun_;  // bodies of queue_ that are begun
  bool lacks_memory_ = false;                  // for the next body of queue_
  Held held_;                                  // reads that are begun and not given to the volume yet
  size_t plans_left_ = 0;                      // bodies that may still be planned in this round
  bool helper_goes_on_ = false;                // the helper's round is not over

  std::vector<std::thread> threads_;
};

}  // namespace kvcachefs
