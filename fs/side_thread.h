// Answers requests that take long, or that wait for a process which may itself wait for the mount. One thread handles them one after another.
// It exists only while there are such requests; meanwhile the threads of the request loop go on.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "store/base/mutex.h"

namespace kvcachefs {

class SideThread {
 public:
  SideThread() = default;
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;
  ~SideThread() { stop(); }

  // Runs `job`, which answers a request, in the thread. Runs it in the caller after stop(), or if the thread cannot be started (the caller
  // then also runs the jobs that arrive meanwhile). May be called by any thread.
  void run(std::function<void()> job);
  // True after stop() began: long jobs check it and answer with an error.
  bool stopping() const { return stopping_; }
  // Waits until all jobs are done. Call before the store stops.
  void stop();

 private:
  bool start();
  void work();

  std::atomic<bool> stopping_{false};
  LeafMutex mutex_;  // guards:
  std::vector<std::function<void()>> jobs_;
  bool working_ = false;
  std::thread thread_;  // joined by the job that starts the next one
};

}  // namespace kvcachefs
