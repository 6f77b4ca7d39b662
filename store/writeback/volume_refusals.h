// The volume takes nothing: when it is tried again, and what waiting calls are told.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/space/space.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf. Told of each outcome by the lanes; asked by those that wait. What a volume without room does not
// take now is not accepted either, for inodes and quotas show in no count of free bytes: Space is told.
class VolumeRefusals {
 public:
  VolumeRefusals(const Clock& clock, Space& space) : clock_(clock), space_(space) {}

  // A try failed: the next one comes after a pause that grows.
  void failed(const Error& error);
  // One succeeded. True: the one before had failed.
  bool succeeded();
  // The volume is not there any more: nothing is worth a try or a wait until it is again. Nothing: it is there.
  void set_gone(std::optional<Error> gone);
  bool is_gone() const { return gone_.load(std::memory_order_relaxed); }
  // The reason may be over: the next try is made at once.
  void try_soon() {
    backoff_.try_soon();
    journal_pause_.try_soon();
  }
  bool may_try() const { return backoff_.may_try(clock_.monotonic_ns()); }
  bool is_failing() const { return backoff_.failing_for_ns(clock_.monotonic_ns()) > 0; }
  // How a batch of the journal ended. After one that failed, the next that only the journal is needed for comes after a pause that grows.
  void journal_ended(const Status& status);
  bool may_try_journal() const { return journal_pause_.may_try(clock_.monotonic_ns()); }
  // As long as the journal lacks room, bodies would take what comes back, and nothing comes back for good before the removals that wait
  // are journaled. Until it is told that there is some, but no longer than btrfs takes to give back what was removed.
  bool journal_lacks_room() const { return clock_.monotonic_ns() < journal_lacks_until_ns_.load(std::memory_order_relaxed); }
  // Why the last try failed; nothing: it did not.
  std::optional<Error> last() const;
  // Why the volume is not there; nothing: it is. (Not for a volume that takes nothing for a while: what then does not fit is undone.)
  std::optional<Error> gone() const;
  // For calls that wait: every try failed for a while, or the volume is gone, and waiting longer is of no use.
  std::optional<Error> lasting() const;

 private:
  const Clock& clock_;
  Space& space_;
  Backoff backoff_{20'000'000, 2'000'000'000};
  Backoff journal_pause_{20'000'000, 100'000'000};  // short: bodies, and drains with them, may wait for the first batch that is taken
  std::atomic<int64_t> journal_lacks_until_ns_{INT64_MIN};
  mutable LeafMutex mutex_;
  std::optional<Error> last_, gone_why_;
  std::atomic<bool> gone_{false};
};

}  // namespace kvcachefs
