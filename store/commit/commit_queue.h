// The committer's requests, and the queue in which they wait.
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

// A body that is written to the volume and waits for its journal record.
struct SealedBody {
  Snapshot snapshot;
  Body body;
  ExtentId extent;  // to be synced before the record if requested; invalid: nothing was written (inline, empty, shared)
  ObjectId shared_with;  // the object whose place this body takes over: its last name must go in the same batch
};

struct CommitRequest {
  std::vector<SealedBody> bodies;
  std::vector<SuccessorsRecord> successors;
  std::vector<ExtentId> extents;  // of bodies sealed earlier, to be synced with these
  std::vector<ExtentId> closed;   // pack extents that take no more bodies; all commits of bodies in them come before this one
  std::vector<Record> answers;    // answers to peers' statements: SeenRecords, journaled after all names that they wait for
  std::vector<StatementRecord> touches;  // uses of peers' objects, and damage: TouchRecords and DamagedRecords, dropped if the journal does not take them
  bool sync = false;        // sync the extents of these bodies before the record, and the record before `done`
  bool sync_all = false;    // ... and everything else written so far, and write a mark to the journal
  StatusCompletion done;    // may be empty
};

// Thread-safe; its lock is that of BlockingQueue, a leaf. One thread, the committer, takes requests.
class CommitQueue {
 public:
  void add(CommitRequest request) {
    in_work_.fetch_add(1);  // before it can be taken: idle() never misses one
    requests_.add(std::move(request));
  }
  // Takes all waiting requests. They count as in work until settled() is called for them.
  std::vector<CommitRequest> take() { return requests_.take(); }
  void settled(size_t count) { in_work_.fetch_sub(count); }
  // True if no request waits or is in work.
  bool idle() const { return in_work_.load() == 0; }
  bool wait() { return requests_.wait(); }
  void stop() { requests_.stop(); }

  // The bodies in requests put so many bytes on the volume that are not known to be synced.
  void note_written(uint64_t bytes) { unsynced_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void note_syncing() { unsynced_bytes_.store(0, std::memory_order_relaxed); }  // everything written until now
  uint64_t unsynced_bytes() const { return unsynced_bytes_.load(std::memory_order_relaxed); }

 private:
  BlockingQueue<CommitRequest> requests_;
  std::atomic<uint64_t> in_work_{0};  // queued, or taken and not settled
  std::atomic<uint64_t> unsynced_bytes_{0};
};

}  // namespace kvcachefs
