// Hands work to one thread that may block, from threads that must not block or that hold a lock.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "store/base/mutex.h"

namespace kvcachefs {

// A flag that one thread waits for and any thread sets; if it was set before the wait, the wait ends at once. Thread-safe; a leaf.
class Wakeup {
 public:
  void wake() {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(woken_, true)) return;
    }
    ready_.notify_one();
  }
  // Returns after wake(), or after `most`, and clears the flag: a later wake() ends the next wait. True: woken.
  bool wait_for(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, most, [this] { return woken_; });
    return std::exchange(woken_, false);
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return woken_; });
    woken_ = false;
  }

 private:
  LeafMutex mutex_;
  ConditionVariable ready_;
  bool woken_ = false;
};

// Thread-safe; a leaf. The thread that calls run() does the work, without the lock, in the order in which it was added.
class WorkQueue {
 public:
  using Work = std::move_only_function<void()>;

  // Each addition calls `wake`, which must not block. It outlives this queue.
  explicit WorkQueue(Wakeup& wake) : wake_(wake) {}

  void add(Work work) {
    {
      std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    wake_.wake();
  }
  // Runs the work that is queued now, not the work that it adds. False: there was none.
  bool run() {
    std::deque<Work> work;
    {
      std::lock_guard lock(mutex_);
      work.swap(work_);
    }
    for (Work& item : work) item();
    return !work.empty();
  }

 private:
  Wakeup& wake_;
  LeafMutex mutex_;
  std::deque<Work> work_;
};

}  // namespace kvcachefs
