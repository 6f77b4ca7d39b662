// Work handed to one thread that may block, by threads that must not or that hold a lock.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "store/base/mutex.h"

namespace kvcachefs {

// A flag that one thread waits for and any thread sets; what was set before the wait ends it at once. Thread-safe; a leaf.
class Wakeup {
 public:
  void wake() {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(woken_, true)) return;
    }
    ready_.notify_one();
  }
  // Returns after wake(), or after `most`, and takes the flag back: a wake-up that comes later ends the next wait. True: woken.
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

// Thread-safe; a leaf. The work runs on the thread that calls run(), without the lock, in the order in which it was added.
class WorkQueue {
 public:
  using Work = std::move_only_function<void()>;

  // `wake` is told of each addition; it must not block. It outlives this queue.
  explicit WorkQueue(Wakeup& wake) : wake_(wake) {}

  void add(Work work) {
    {
      std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    wake_.wake();
  }
  // Runs what is there now, not what that adds. False: there was nothing.
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
