// What the committer works on.
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

// All that waits when the committer turns to it, journaled as one batch, or as several where that is too much for one.
struct Commit {
  // A batch is one frame of the journal, at most 32 MiB, so that one more record, or the 20,000 statements of one name, do it no harm.
  // What has to be in one batch (`split`) must be counted in full: another record before it, and it is in two.
  static constexpr uint64_t kBatchBytes = 8 * kMiB;

  std::vector<CommitRequest> requests;
  bool sync = false, sync_all = false;
  // What waits, taken off from the front: bodies go before attributes, and those before names.
  bool taken = false;
  uint64_t accepted_bytes = 0;  // see RecordSpace: taken with it
  bool split = false;  // it takes several batches, or may
  std::deque<SealedBody> bodies;
  std::deque<ObjectPtr> changed;
  std::deque<DirtyName> pending;
  std::deque<SuccessorsRecord> successors;
  std::vector<SuccessorsRecord> body_rows;   // of the bodies of `requests`
  std::vector<SuccessorsRecord> early_rows;  // of objects that the journal does not know yet
  std::unordered_map<ObjectId, size_t> named_as_is;  // their names do not wait for what was written to them since; in the order found
  TouchRecord read_times;          // before all of these: what is said of an object later counts
  std::vector<Record> answers;     // behind all of these
  std::deque<StatementRecord> touches;
  PeersRemoval::SpokenOf spoken_of;  // of peers' directories
  std::deque<ObjectId> nameless;   // objects of the index that no name refers to any more
  std::unordered_map<ObjectId, uint64_t> put;  // objects whose records are in this batch or one before, with the content's version
  // One batch, and what has to be settled when it is in the journal.
  Batch batch;
  std::optional<Namespace::Overridden> overridden;  // when it was made; none: nobody asked
  uint64_t batch_bytes = 0;  // about
  uint64_t appended_bytes = 0;  // to the journal in this life, the last batch of this commit included
  bool replaces = false, removes = false;  // it gives a journaled name to another object, or takes one away
  std::vector<SealedBody> sealed;
  std::vector<std::pair<ObjectPtr, uint64_t>> attributes;  // with the version recorded
  std::vector<std::pair<DirtyName, ObjectId>> names;       // -> durable from now on
  std::vector<ObjectId> dropped;                           // of `nameless`

  bool full() const { return batch_bytes >= kBatchBytes; }
  void add(Record record, uint64_t bytes) {
    batch.records.push_back(std::move(record));
    batch_bytes += bytes;
  }
};

}  // namespace kvcachefs
