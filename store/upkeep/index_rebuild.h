// Rebuilds a damaged index while mounted, from the newest checkpoint and the journals: the index is a function of them (invariant 4). Reads
// go on meanwhile, answered from the rows that are sound.
//
// Any thread may call; one rebuild runs at a time, and other callers wait for it. Its mutex is held across I/O: the keeper and the
// committer take it first, while they hold nothing else.
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

  // Returns success if `index` is sound, or was repaired. After a failure, further attempts return the same error for some seconds.
  Status repair(Index& index);
  // Whether the journals can be replayed unverified. False until the first checkpoint of a start that read bodies to judge them: a rebuild
  // would have to judge them again, with bodies that have changed since.
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
