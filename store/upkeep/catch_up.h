// Calls that wait until this node has read what the other nodes wrote. While this process stands still (SIGSTOP, a frozen machine) the others wait
// for it for some seconds only: then they give up what it still shows of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

#include "store/api/request_types.h"
#include "store/base/mutex.h"
#include "store/base/running_clock.h"

namespace kvcachefs {

// Thread-safe.
class CatchUp {
 public:
  static constexpr int64_t kPatienceNs = 10'000'000'000;
  static constexpr int64_t kBehindNs = 60'000'000'000;  // a node that cannot be read would keep leases away for ever
  using Then = std::move_only_function<void()>;
  // `refresh`: as Peers::refresh(), with no lock of this class held. `running` null: this process never counts as having stood still.
  CatchUp(const RunningClock* running, std::function<void(StatusCompletion)> refresh) : running_(running), refresh_(std::move(refresh)) {}

  // True: this process stood still since the last read() that has ended.
  bool is_due() const { return running_ != nullptr && running_->went_on_ns() > read_ns_; }
  // True for a minute at most: since then no read() has read all others, so what they gave up may be shown still.
  bool is_behind() const { return running_ != nullptr && running_->went_on_ns() > whole_ns_ && running_->machine_ns() - running_->went_on_ns() < kBehindNs; }
  // Runs `then` once what the others wrote before this call is read, or could not be read, or was not read within kPatienceNs. On this thread, the one
  // that completes the refresh, or that of tick(); with no lock held.
  void read(Then then);
  // Call about every second.
  void tick();

 private:
  struct Waiting {
    Then then;
    int64_t begun_ns = 0, running_since_ns = 0;
  };
  void end(uint64_t number, bool is_read);

  const RunningClock* const running_;
  const std::function<void(StatusCompletion)> refresh_;
  std::atomic<int64_t> read_ns_{0}, whole_ns_{0};  // by the clock of went_on_ns(): when the newest read() that has ended began; that read all
  LeafMutex mutex_;  // a leaf; guards:
  std::map<uint64_t, Waiting> waiting_;  // by number, ascending
  uint64_t last_ = 0;
};

}  // namespace kvcachefs
