// Runs many blocking calls on a few threads, for a caller that waits for all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/thread.h"

namespace kvcachefs {

// Used by one thread, which also does part of the work. The threads start with the first run() that has work for them, and end in the destructor.
class ParallelRunner {
 public:
  // `name` has at most 15 characters and outlives this object. With 0 threads run() is a plain loop.
  ParallelRunner(const char* name, unsigned threads) : name_(name), wanted_(threads) {}
  ParallelRunner(const ParallelRunner&) = delete;
  ParallelRunner& operator=(const ParallelRunner&) = delete;
  ~ParallelRunner() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Calls job(0) to job(count - 1), each once, several at a time. Returns when all have returned. `job` must not throw.
  void run(size_t count, const std::function<void(size_t)>& job) {
    std::unique_lock lock(mutex_);
    while (threads_.size() < wanted_ && threads_.size() + 1 < count && start()) {
    }
    job_ = &job;
    next_ = 0;
    count_ = count;
    if (count > 1) work_.notify_all();
    take_part(lock);
    done_.wait(lock, [this] { return running_ == 0; });
    job_ = nullptr;
  }

 private:
  // False: the process cannot start more threads. The existing threads, or the caller alone, do the work.
  bool start() {
    auto started = start_thread(name_, [this] { loop(); });
    if (started) threads_.push_back(std::move(*started));
    else wanted_ = static_cast<unsigned>(threads_.size());
    return started.has_value();
  }
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || (job_ != nullptr && next_ < count_); });
      if (stopping_) return;
      take_part(lock);
    }
  }
  // Caller holds mutex_, which is released while a job runs.
  void take_part(std::unique_lock<LeafMutex>& lock) {
    while (next_ < count_) {
      const size_t index = next_++;
      ++running_;
      lock.unlock();
      (*job_)(index);
      lock.lock();
      if (--running_ == 0 && next_ == count_) done_.notify_all();
    }
  }

  const char* const name_;
  unsigned wanted_;
  LeafMutex mutex_;  // guards all below except threads_
  ConditionVariable work_, done_;
  const std::function<void(size_t)>* job_ = nullptr;
  size_t next_ = 0, count_ = 0, running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvcachefs
