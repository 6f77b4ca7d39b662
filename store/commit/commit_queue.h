// What the committer is given, and the queue in which it waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/blocking_queue.h"
#include "store/base/records.h"
#include "store/object/snapshot.h"

namespace kvcachefs {

// A body that is on the volume and waits for its journal record.
struct SealedBody {
  Snapshot snapshot;
  Body body;
  ExtentId extent;  // to sync before the record when asked to; invalid: nothing was written (inline, empty, shared)
  ObjectId shared_with;  // the object whose place this body takes over: it must lose its last name in the same batch
};

struct CommitRequest {
  std::vector<SealedBody> bodies;
  std::vector<SuccessorsRecord> successors;
  std::vector<ExtentId> extents;  // of bodies sealed before, to be synced with these
  std::vector<ExtentId> closed;   // pack extents that take no more bodies; those of them committed are all before this
  std::vector<Record> answers;    // to what peers said: SeenRecords, journaled once all names are that wait until then
  std::vector<StatementRecord> touches;  // of what peers have: TouchRecords, not kept where the journal does not take them
  bool sync = false;        // sync these bodies' extents before the record and the record before `done`
  bool sync_all = false;    // ... and everything else written so far, and say so in the journal
  StatusCompletion done;    // may be empty
};

// Thread-safe; its lock is that of BlockingQueue, a leaf. One thread, the committer, takes from it.
class CommitQueue {
 public:
  void add(CommitRequest request) {
    in_work_.fetch_add(1);  // before it can be taken: idle() never misses one
    requests_.add(std::move(request));
  }
  // All that wait. They count as in work until settled() is told of them.
  std::vector<CommitRequest> take() { return requests_.take(); }
  void settled(size_t count) { in_work_.fetch_sub(count); }
  // Nothing waits, and nothing is in work.
  bool idle() const { return in_work_.load() == 0; }
  bool wait() { return requests_.wait(); }
  void stop() { requests_.stop(); }

  // Of the bodies in requests so much was written to the volume, and is not synced as far as is known.
  void note_written(uint64_t bytes) { unsynced_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void note_syncing() { unsynced_bytes_.store(0, std::memory_order_relaxed); }  // all that was written until now
  uint64_t unsynced_bytes() const { return unsynced_bytes_.load(std::memory_order_relaxed); }

 private:
  BlockingQueue<CommitRequest> requests_;
  std::atomic<uint64_t> in_work_{0};  // queued, or taken and not settled
  std::atomic<uint64_t> unsynced_bytes_{0};
};

}  // namespace kvcachefs
