// For requests whose answer takes long, or waits for something that may itself wait for the mount: they are answered one after another
// in a thread that is there while there are some. The threads of the request loop go on meanwhile.
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

  // Runs `job`, which answers a request, in the thread; here, when that has been stopped, and, with those that come meanwhile,
  // when it cannot be started. From any thread.
  void run(std::function<void()> job);
  // Jobs that take long look at it, and answer with an error.
  bool stopping() const { return stopping_; }
  // Until all jobs are done. Before the store stops.
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
