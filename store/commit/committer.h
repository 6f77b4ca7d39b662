// The committer: one thread that puts sealed bodies, changed attributes and changed names into one journal batch, applies it to the index,
// and then answers the waiting calls. Requests that queue up meanwhile share the next batch (group commit).
//
// Invariant 3 is kept here: a body is written before it is in a request; under sync the data is synced before the record, and the record
// before the answer. A mark states that everything before it, records and data, is on the medium.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "store/api/counters.h"
#include "store/base/health.h"
#include "store/base/lasting_failure.h"
#include "store/cache/resumer.h"
#include "store/commit/batch_builder.h"
#include "store/commit/commit_queue.h"
#include "store/commit/journal_room.h"
#include "store/commit/settler.h"
#include "store/extent/extents.h"
#include "store/journal/journal.h"
#include "store/journal/node_fence.h"

namespace kvcachefs {

// Thread-safe, except step(), which one thread at a time runs: kvc-committer between start() and stop(), otherwise the owner's (tests).
class Committer {
 public:
  struct Parts {
    CommitQueue& queue;
    JournalWriter& journal;
    JournalRoom& room;
    Extents& extents;
    Resumer& resumer;
    Health& health;
    Counters& counters;
    BatchBuilder::Parts builds;
    Settler::Parts settles;
    std::function<Status()> mend_index;  // rebuilds the index if it is damaged; success: it is sound. Blocks
    NodeFence* fence = nullptr;          // null: no other process can take over this node
  };
  explicit Committer(Parts parts) : parts_(std::move(parts)), builder_(parts_.builds), settler_(parts_.settles) {}
  ~Committer() { stop(); }

  Status start();
  // Ends the thread after it has done the queued requests.
  void stop();
  bool is_running() const { return running_.load(); }
  // Commits everything queued. Returns false if nothing was.
  bool step();
  // Returns once the request is settled: by the committer's thread, or by the caller's if none runs. Call with no lock held.
  Status commit_and_wait(CommitRequest request);
  // Appends a batch that belongs to no request, during a start, before any request. It is neither applied to the index nor settled.
  Result<JournalPosition> append(const Batch& batch);

  // Bytes appended since the last checkpoint of this epoch replaced the journals before it. Does not block.
  uint64_t journal_bytes() const { return parts_.journal.appended().bytes_since_rotate; }

 private:
  Status check_fence() const { return parts_.fence != nullptr ? parts_.fence->check() : Status(); }
  Status journal_batch(Commit& commit);
  Status sync_data(Commit& commit);
  Status sync_journal();
  Status may_mark();
  Status mark_synced();
  Status apply(Commit& commit, JournalPosition after);
  Result<std::vector<FreedPlace>> try_to_apply(const Batch& batch, JournalPosition after);
  Result<std::vector<FreedPlace>> apply_to_index(const Batch& batch, JournalPosition after);

  const Parts parts_;
  BatchBuilder builder_;
  Settler settler_;
  log::LastingFailure failure_;  // of the journal, or of the syncs before it
  std::atomic<bool> running_{false};
  std::thread thread_;
};

}  // namespace kvcachefs
