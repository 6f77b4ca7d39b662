// Reads from the volume to RAM; every byte is verified before any reader sees it (invariant 2 of the store).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/opener.h"
#include "store/base/work_queue.h"
#include "store/cache/body_cache.h"
#include "store/cache/file_policy.h"
#include "store/commit/quarantine.h"
#include "store/extent/extents.h"
#include "store/load/load_job.h"
#include "store/object/object.h"
#include "store/tree/tree.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe; no lock of its own: takes those of bodies, one at a time. Callers hold no lock. A call may block to open an extent that
// is not in the cache, unless the thread must not block (MustNotBlock): then the opener opens it.
class Loader {
 public:
  struct Parts {
    Volume& volume;
    Extents& extents;
    Tree& tree;
    BodyCache& cache;
    const MemoryFilePolicy& files;
    Quarantine& quarantine;
    Opener& opener;
    WorkQueue& later;  // for blocking work: a second look at bytes that do not match
    Counters& counters;
    const Clock& clock;
    // Runs what it is given once this node has read what the others wrote up to now, or has tried to, on any thread. Empty: there are no other nodes.
    std::function<void(std::move_only_function<void()>)> read_peers = {};
  };
  explicit Loader(Parts parts) : parts_(parts) {}
  // `sink` receives every read. Set once, before the first read.
  void set_arrivals(ArrivalSink& sink) { arrivals_ = &sink; }

  // Reads the missing units of the range, on demand; `done` runs when the wanted ones are there, or one failed. From the moment they
  // have their memory, `pin` keeps the wanted units in RAM until it is released. If there is no memory the request waits for it in
  // turn.
  void load(const ObjectPtr& object, LoadRange range, MemoryFor who, std::shared_ptr<WantedUnits> pin, StatusCompletion done);
  // The same for a caller that waits by itself. False: there is no memory for the wanted units now, or this try may not take any;
  // then it holds nothing. `waiter` counts each wanted unit that is being read.
  bool start(const ObjectPtr& object, LoadRange range, MemoryFor who, const std::shared_ptr<LoadWaiter>& waiter, WantedUnits* pin,
             MemoryWaiters::Try& attempt);

  // For callers that collect reads of several bodies. Adds the reads for the missing units of the range; `waiter` also counts wanted
  // units that are on their way already. False: `memory` does not suffice, and tells what is lacking; nothing was done. The caller
  // calls plan() again once get_memory() has found it.
  bool plan(const ObjectPtr& object, LoadRange range, LoadMemory& memory, const std::shared_ptr<LoadWaiter>& waiter, bool urgent,
            LoadJobs& jobs);
  bool get_memory(LoadMemory& memory);
  // Sends the jobs to the volume. Jobs next to each other in one file, as small bodies of one prefix are, become one read.
  void submit(LoadJobs jobs);
  // Takes in the next body of a read that has ended: verifies it, puts it in its place, and calls the waiting requests.
  void take_in_next(ArrivedRead& read);

  // Memory that is waiting for reads of the volume.
  uint64_t loading_bytes() const { return loading_bytes_.load(std::memory_order_relaxed); }

 private:
  using Waiting = std::vector<std::move_only_function<void(Status)>>;
  void open_files(LoadJobs& jobs, LoadJobs& to_open);
  void read_inline(LoadJobPtr job);
  void finish(LoadJobPtr job, Result<size_t> result);
  void second_look(const LoadJobPtr& job);
  Result<size_t> read_again(LoadJob& job, FilePtr& file);
  void note_failed(const LoadJob& job, const Status& status);
  void settle(const LoadJobPtr& job, bool goes, Waiting waiting, const Status& status);
  static Waiting take_waiting(const LoadJob& job);

  const Parts parts_;
  ArrivalSink* arrivals_ = nullptr;
  std::atomic<uint64_t> loading_bytes_{0};
};

}  // namespace kvcachefs
