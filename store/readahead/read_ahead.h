// Reading ahead: what the tracker of accesses plans is carried out, whole bodies into RAM, neighbours on the volume in one read, as
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

// Thread-safe. One thread, kvc-prefetcher, or the threads that help; and four (kvc-kernel) that read files into the page cache. Without
// threads of its own the owner calls step().
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

  void start();
  void stop();  // ends the threads
  // After stop(), once the volume has answered everything: what was left to a thread that helps is taken in.
  void finish();
  // At the very end, with no thread at it: drops reads that were held back or not taken in, while all that their memory counts in is
  // still there.
  void give_up();

  // There may be something to plan, or room for what is queued. Never blocks.
  void kick();
  // Until resume() time stands still for this thread (RequestClock), and what would wake the prefetcher does so then.
  void hold();
  void resume();
  // A reader wants a body now, which may be queued. Its own read does not wait for the queue; what follows the body is its next. Nor is
  // anything held any more: the answer comes later. Called before Loader::load(), with no lock held.
  void note_demand(ObjectId id);
  // A body that is queued, and will lie in a memory file, is read now: an open of it is about to wait for that.
  void hurry_into_file(const ObjectPtr& object);
  KernelAhead& kernel() { return kernel_; }

  // All that can be done now. True: something was.
  bool step();

  // A thread that polls for requests does a piece of this work in a pause, and takes over all that can be done in passing until it
  // leaves off. True: there may be more at once. Never blocks.
  bool help();
  void leave_off();

 private:
  struct Waiter;
  struct Lacking;
  struct Begun {  // a body of which the first units are being read ahead, or were
    std::shared_ptr<Waiter> waiter;
    size_t next_unit = 0;
  };
  // Reads that wait for their neighbours.
  struct Held {
    LoadJobs jobs;
    uint64_t bytes = 0;
    int64_t begun_ns = 0;  // all together; sending them takes time
    uint32_t run = 0;      // of the first
    bool mixed = false;    // there are others'
    bool awaited = false;  // somebody waits for them
    bool urgent = false;   // a reader is right behind the first

    void note(const ReadAheadQueue::Item& item);
    uint64_t enough() const;
  };
  // Larger bodies are not for a thread that polls: to check one takes it from its requests for too long.
  static constexpr uint64_t kHelpedBytes = 128 * kKiB;
  enum class Body : uint8_t { kDone, kPart, kNoMemory, kNotHere };
  enum class By : uint8_t { kThread, kHelper };  // a helper takes what is small, and cannot block
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

  // turn_ held, from here on.
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
  std::atomic<uint64_t> in_flight_bytes_{0};  // of memory for what is being read ahead; of a file of its own at least its part of most_files_
  const uint64_t most_files_ = descriptor_shares().open_extents;  // open at a time
  std::atomic<bool> helper_due_{false};       // there may be something for a helper; set after what it is to find
  std::atomic<bool> helper_there_{false};     // as helped_, to be looked at without the lock
  std::atomic<int64_t> helper_deadline_ns_{INT64_MAX};  // of what a helper planned last: the prefetcher is asleep

  LeafMutex mutex_;  // a leaf. Guards the next lines, to turn_
  ConditionVariable ready_;
  ReadAheadQueue queue_;
  bool kicked_ = false, stopping_ = false;
  bool helped_ = false;        // a thread that polls does what can be done in passing
  bool for_thread_ = false;    // ... but not what is next
  bool thread_works_ = false;  // the prefetcher does
  std::deque<std::unique_ptr<ArrivedRead>> arrived_;  // left to a helper

  // One piece of work at a time, by the prefetcher, a helper (which does not wait for the lock) or step(). Before all other locks, and
  // held while an extent is opened; no request of a client ever waits for it. Guards the rest.
  Mutex<LockRank::kTurn> turn_;
  std::unordered_map<ObjectId, Begun> begun_;  // of those in queue_
  bool lacks_memory_ = false;                  // ... for the next of queue_
  Held held_;                                  // begun, and not given to the volume yet
  size_t plans_left_ = 0;                      // bodies that may still be planned in this round
  bool helper_goes_on_ = false;                // the helper's last piece was not the last of its round

  std::vector<std::thread> threads_;
};

}  // namespace kvcachefs
