// What the committer is given, and the queue in which it waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/mutex.h"
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
  bool sync = false;        // sync these bodies' extents before the record and the record before `done`
  bool sync_all = false;    // ... and everything else written so far, and say so in the journal
  StatusCompletion done;    // may be empty
};

// Thread-safe; mutex_ is a leaf. One thread, the committer, takes from it.
class CommitQueue {
 public:
  void add(CommitRequest request);
  // All that wait. They count as in work until settled() is told of them.
  std::vector<CommitRequest> take();
  void settled(size_t count) { in_work_.fetch_sub(count); }
  // Nothing waits, and nothing is in work.
  bool idle() const { return in_work_.load() == 0; }
  // Blocks until something waits. False: the queue was stopped, and is empty.
  bool wait();
  void stop();

 private:
  LeafMutex mutex_;
  ConditionVariable ready_;
  std::vector<CommitRequest> requests_;
  bool stopping_ = false;
  std::atomic<uint64_t> in_work_{0};  // queued, or taken and not settled
};

}  // namespace kvcachefs
