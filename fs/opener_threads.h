// A few threads for work that may block on the volume, so that the threads that take requests do not. They start when first needed.
// Thread-safe, one leaf mutex.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "store/base/mutex.h"

namespace kvcachefs {

class OpenerThreads {
 public:
  using Work = std::move_only_function<void()>;
  static constexpr size_t kMostThreads = 4;
  ~OpenerThreads() { stop(); }

  // Queues `work` for a thread. Runs it in the caller after stop(), and if no thread can be started.
  void run(Work work);
  // Finishes the queued work, then ends the threads.
  void stop();

 private:
  bool has_thread();
  void work();

  LeafMutex mutex_;  // guards:
  ConditionVariable ready_;
  std::deque<Work> queue_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace kvcachefs
