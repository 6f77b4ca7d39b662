// Tracks a volume that takes no writes: when it is tried again, and which error waiting calls get.
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

// Thread-safe; mutex_ is a leaf. The lanes report each outcome; waiting calls ask. It also tells Space: while a volume without room takes
// nothing, nothing is accepted either, because inodes and quotas show in no count of free bytes.
class VolumeRefusals {
 public:
  VolumeRefusals(const Clock& clock, Space& space) : clock_(clock), space_(space) {}

  // A try failed: the next one comes after a pause that grows.
  void failed(const Error& error);
  // A try succeeded. True: the one before had failed.
  bool succeeded();
  // The volume is gone: no try or wait is of use until it is back. No value: it is there.
  void set_gone(std::optional<Error> gone);
  bool is_gone() const { return gone_.load(std::memory_order_relaxed); }
  // The reason may be over: the next try is made at once.
  void try_soon() {
    backoff_.try_soon();
    journal_pause_.try_soon();
  }
  bool may_try() const { return backoff_.may_try(clock_.monotonic_ns()); }
  bool is_failing() const { return backoff_.failing_for_ns(clock_.monotonic_ns()) > 0; }
  // Reports the result of a batch of the journal. After a failure the next batch that needs only the journal waits for a pause that grows.
  void journal_ended(const Status& status);
  bool may_try_journal() const { return journal_pause_.may_try(clock_.monotonic_ns()); }
  // True while the journal lacks room: bodies would take the space that comes back, and no space comes back for good before the waiting
  // removals are journaled. Ends when the journal succeeds, but at the latest after the time that btrfs takes to give back removed files.
  bool journal_lacks_room() const { return clock_.monotonic_ns() < journal_lacks_until_ns_.load(std::memory_order_relaxed); }
  // Why the last try failed; no value: it did not.
  std::optional<Error> last() const;
  // Why the volume is gone; no value: it is there. (Not for a volume that takes nothing for a while: a body that does not fit then is undone.)
  std::optional<Error> gone() const;
  // For calls that wait: every try failed for a while, or the volume is gone, and waiting longer is of no use.
  std::optional<Error> lasting() const;

 private:
  const Clock& clock_;
  Space& space_;
  Backoff backoff_{20'000'000, 2'000'000'000};
  Backoff journal_pause_{20'000'000, 100'000'000};  // short: bodies, and drains with them, may wait for the first batch that succeeds
  std::atomic<int64_t> journal_lacks_until_ns_{INT64_MIN};
  mutable LeafMutex mutex_;
  std::optional<Error> last_, gone_why_;
  std::atomic<bool> gone_{false};
};

}  // namespace kvcachefs
