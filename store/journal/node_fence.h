// Whether this daemon still has its node. While a daemon was stopped for minutes, or cut off from the volume, another daemon or a command may have
// begun its node anew (it needs the lock, but a lock can be lost with the connection, or was never more than the machine's). What the old daemon
// publishes from then on counts for nobody (EndsRecord); the fence makes sure that it tells no client otherwise, and that it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Nanoseconds since the machine started, including time asleep.
int64_t boottime_ns();

// Thread-safe.
class NodeFence {
 public:
  static constexpr int64_t kLimitNs = 30'000'000'000;  // no node is taken for gone before its HEAD has stood still this long
  using Now = std::function<int64_t()>;

  // `own`: with the epoch that this daemon has just begun.
  NodeFence(std::shared_ptr<Volume> volume, FileIdentity own, int64_t limit_ns = kLimitNs, Now now = boottime_ns);

  // Call after HEAD or a batch was written to the volume. Ignored if the limit has passed since the last contact: then only check() helps.
  void heard_of();
  // Call before something is published, and before a client is told that it was. An error: another daemon has the node, which is final, or that could not
  // be determined. Blocks on the volume if the last contact is longer ago than the limit; else costs a look at the clock.
  Status check();
  // The same for a thread on which no client waits, called every second: it looks at the volume three times within the limit, whatever was written.
  Status check_now_and_then();
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
  // Runs `then` once, when the node is lost, on the thread that detects it; at once if it is lost already.
  void on_lost(std::function<void()> then);

 private:
  Status look();
  bool is_due() const { return now_() - heard_ns_.load(std::memory_order_relaxed) > limit_ns_; }
  std::unexpected<Error> lost(uint32_t epoch);
  std::unexpected<Error> lost_error() const;

  const std::shared_ptr<Volume> volume_;
  const FileIdentity own_;
  const int64_t limit_ns_;
  const Now now_;
  std::atomic<int64_t> heard_ns_, looked_ns_;
  std::atomic<bool> lost_{false};
  LeafMutex mutex_;  // a leaf; guards:
  std::function<void()> then_;
};

}  // namespace kvcachefs
