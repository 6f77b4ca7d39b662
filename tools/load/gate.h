// A barrier: threads wait until a number of them have arrived, or until one announces that they never will.
#pragma once

#include <condition_variable>
#include <mutex>

#include "tools/load/cpu_time.h"

namespace kvcachefs {

// Thread-safe; must outlive the threads that wait. (Not std::barrier or std::latch: a test of the bench hung once in hundreds of runs, and
// waiting for atomics in libstdc++ 12 could not be ruled out as the cause.)
class Gate {
 public:
  explicit Gate(unsigned awaited) : awaited_(awaited) {}
  void arrive() {
    std::lock_guard lock(mutex_);
    if (--awaited_ > 0) return;
    opened_s_ = monotonic_s();
    open_.notify_all();
  }
  // Ends every wait; wait() then returns false.
  void abort() {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    open_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    open_.wait(lock, [&] { return awaited_ == 0 || aborted_; });
    return !aborted_;
  }
  bool arrive_and_wait() {
    arrive();
    return wait();
  }
  // When the last thread arrived. Call after wait().
  double opened_s() const { return opened_s_; }

 private:
  std::mutex mutex_;
  std::condition_variable open_;
  unsigned awaited_;      // mutex_
  bool aborted_ = false;  // mutex_
  double opened_s_ = 0;   // mutex_, until open
};

}  // namespace kvcachefs
