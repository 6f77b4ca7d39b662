// Records that a start journals before there is a committer: the root, and the removal of objects whose names a crash took.
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

// Used by the thread that starts the store; no lock.
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

  // Must be called first: says that the journals of earlier epochs count up to `end`. `left_out`: not all of their records are believed, and a checkpoint will tell.
  Status end_earlier(JournalPosition end, bool left_out);
  // Makes the root directory, if the index does not have it.
  Status make_root();
  // Scans the index for nameless objects and gives and takes a name of each in one batch, which removes them and frees their places.
  Status drop_nameless();
  // Removes all names as if each was unlinked: for a node that leaves the volume. Other nodes may still read the named files. Commits the index
  // on the way, each time after a `sync` of the journal.
  Status remove_all_names(const std::function<Status()>& sync);

 private:
  Status remove(const Batch& batch, const std::function<Status()>& sync);
  Status drop(std::span<const ObjectId> nameless);
  Status journal(const Batch& batch);

  const Parts parts_;
};

}  // namespace kvcachefs
