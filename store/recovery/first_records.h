// What a start journals by itself, before there is a committer: the root, and the removal of objects whose names a crash took.
#pragma once

#include <functional>
#include <span>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/space/dead_space.h"

namespace kvcachefs {

// By the thread that starts the store; no lock.
class FirstRecords {
 public:
  struct Parts {
    Index& index;
    DeadSpace& dead;
    const Clock& clock;
    HybridClock& stamps;
    Counters& counters;
    std::function<Result<JournalPosition>(const Batch&)> append;  // to the journal
  };
  explicit FirstRecords(Parts parts) : parts_(std::move(parts)) {}

  // First of all: the journals of earlier epochs count up to there. `left_out`: what they say is not all believed, and a checkpoint will tell.
  Status end_earlier(JournalPosition end, bool left_out);
  // The root directory, if the index does not have it.
  Status make_root();
  // Named and unnamed in one batch, which drops the objects and frees their places. A scan of the index.
  Status drop_nameless();
  // As if each was unlinked: for a node that leaves the volume. Other nodes may still read what they named. Commits the index on the way,
  // with `sync` of the journal before.
  Status remove_all_names(const std::function<Status()>& sync);

 private:
  Status remove(const Batch& batch, const std::function<Status()>& sync);
  Status drop(std::span<const ObjectId> nameless);
  Status journal(const Batch& batch);

  const Parts parts_;
};

}  // namespace kvcachefs
