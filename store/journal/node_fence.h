// Whether this daemon still has its node. One that was stopped for minutes, or cut off from the volume, may have been taken for gone, and its
// node begun anew by another daemon or a command (which needs the lock: where that is lost with the connection, or was never more than the
// machine's). What it publishes from then on counts for nobody (EndsRecord); this is so that it tells no client otherwise, and ends.
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

// Nanoseconds since the machine was started, those in which it slept included.
int64_t boottime_ns();

// Thread-safe.
class NodeFence {
 public:
  static constexpr int64_t kLimitNs = 30'000'000'000;  // nobody takes a node for gone whose HEAD stands for less
  using Now = std::function<int64_t()>;

  // `own`: with the epoch of this daemon, which has just begun.
  NodeFence(std::shared_ptr<Volume> volume, FileIdentity own, int64_t limit_ns = kLimitNs, Now now = boottime_ns);

  // HEAD or a batch was written to the volume a moment ago. After a longer silence it says nothing: check() does.
  void heard_of();
  // Before something is published, and before a client is told that it was. An error: the node is another daemon's, for good, or that could not
  // be found out. Blocks on the volume if nothing was heard of this daemon for the limit, else costs a look at the clock.
  Status check();
  // The same by a thread on which no client waits, every second: it looks three times in that limit, whatever was heard.
  Status check_now_and_then();
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
  // Called once, when it is lost, by the thread that finds out; at once if it is already.
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
