// Builds a damaged index anew, behind the mount, from the newest checkpoint and the journals: the index is a function of them
// (invariant 4). Reads go on meanwhile, each answered by the rows that are sound.
//
// Threads: any; one rebuild at a time, and whoever comes meanwhile waits for it. Its mutex is held across I/O: it is the first
// that the keeper and the committer take, and nothing else is held by them.
#pragma once

#include <atomic>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class IndexRebuild {
 public:
  IndexRebuild(Volume& volume, FileIdentity identity, const Clock& clock)
      : volume_(volume), identity_(std::move(identity)), clock_(clock) {}

  // Success if `index` is sound, or was made so. After a failure the next attempts answer the same for some seconds.
  Status repair(Index& index);
  // Whether the journals are believed as they are. Not before the first checkpoint of a start that read bodies to judge them,
  // for that would have to be done again, of what has changed since.
  void allow(bool believed) { believed_.store(believed, std::memory_order_relaxed); }
  uint64_t rebuilds() const { return rebuilds_.load(std::memory_order_relaxed); }

 private:
  Status build(Index& index);
  Status fill(Index& fresh, JournalPosition until);

  Volume& volume_;
  const FileIdentity identity_;
  const Clock& clock_;
  std::atomic<bool> believed_ = false;
  std::atomic<uint64_t> rebuilds_ = 0;
  Mutex<LockRank::kTurn> turn_;
  Status failure_;  // of the last attempt
  int64_t next_try_ns_ = 0;
};

}  // namespace kvcachefs
