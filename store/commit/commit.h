// The data of one round of the committer.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/records.h"
#include "store/base/units.h"
#include "store/commit/commit_queue.h"
#include "store/object/object.h"
#include "store/peers/view.h"
#include "store/tree/namespace.h"

namespace kvcachefs {

// Everything that waits when the committer begins a round: journaled as one batch, or as several if it is too much for one.
struct Commit {
  // A batch is one frame of the journal, at most 32 MiB: so one record more, or the 20,000 statements of one name, do no harm. Records that
  // must be in one batch (`split`) have to be counted in full: an uncounted record before them could push them into two.
  static constexpr uint64_t kBatchBytes = 8 * kMiB;

  std::vector<CommitRequest> requests;
  bool sync = false, sync_all = false;
  // pending changes, taken from the front: bodies go before attributes, and attributes before names
  bool taken = false;
  uint64_t accepted_bytes = 0;  // see RecordSpace: taken together with the changes
  bool split = false;  // the commit takes several batches, or may
  std::deque<SealedBody> bodies;
  std::deque<ObjectPtr> changed;
  std::deque<DirtyName> pending;
  std::deque<SuccessorsRecord> successors;
  std::vector<SuccessorsRecord> body_rows;   // for the bodies of `requests`
  std::vector<SuccessorsRecord> early_rows;  // for objects that the journal does not know yet
  std::unordered_map<ObjectId, size_t> named_as_is;  // names of these do not wait for later writes to them; numbered in the order found
  TouchRecord read_times;          // goes first: later records about the same object prevail
  std::vector<Record> answers;     // go last
  std::deque<StatementRecord> touches;
  PeersRemoval::SpokenOf spoken_of;  // peers' directories that have statements
  std::deque<ObjectId> nameless;   // objects in the index that no name refers to any more
  std::unordered_map<ObjectId, uint64_t> put;  // objects with records in this batch or an earlier one, with the version of the content
  // One batch, and what has to be settled once it is in the journal.
  Batch batch;
  std::optional<Namespace::Overridden> overridden;  // at the time of the batch; nullopt: not needed yet
  uint64_t batch_bytes = 0;  // estimate
  uint64_t appended_bytes = 0;  // to the journal in this run, with the last batch of this commit
  bool replaces = false, removes = false;  // the batch gives a journaled name to another object, or takes one away
  std::vector<SealedBody> sealed;
  std::vector<std::pair<ObjectPtr, uint64_t>> attributes;  // with the recorded version
  std::vector<std::pair<DirtyName, ObjectId>> names;       // -> durable after this batch
  std::vector<ObjectId> dropped;                           // taken from `nameless`

  bool full() const { return batch_bytes >= kBatchBytes; }
  void add(Record record, uint64_t bytes) {
    batch.records.push_back(std::move(record));
    batch_bytes += bytes;
  }
};

}  // namespace kvcachefs
