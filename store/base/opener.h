// Keeps work that may block off the threads for which others wait.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "store/base/blocking_queue.h"
#include "store/base/result.h"

namespace kvcachefs {

// While an object of this class exists, its thread must not block, because others wait for it: it handles completions of the volume or resumes
// requests. Work that would open a file or call the volume goes to another thread (Opener).
class MustNotBlock {
 public:
  MustNotBlock() { ++depth_; }
  ~MustNotBlock() { --depth_; }
  MustNotBlock(const MustNotBlock&) = delete;
  MustNotBlock& operator=(const MustNotBlock&) = delete;
  static bool here() { return depth_ > 0; }

 private:
  static constinit thread_local int depth_;
};

// Thread-safe; its lock is that of BlockingQueue, a leaf. One thread, kvc-opener; while it does not run, run() does the work on the calling thread.
class Opener {
 public:
  using Work = std::move_only_function<void()>;
  ~Opener() { stop(); }

  Status start();
  // Ends the thread after it has done its work. From now on run() does the work on the calling thread.
  void stop();
  // Whether the calling thread must not block and the opener's thread runs.
  bool is_needed_here() const { return MustNotBlock::here() && runs_.load(std::memory_order_relaxed); }
  // Runs `work` on the calling thread if that may block, else on the opener's thread.
  void run(Work work);
  // Does the work that was queued while the thread was ending, on the calling thread. False: there was none.
  bool finish();

 private:
  BlockingQueue<Work> queue_;
  std::atomic<bool> runs_{false};
  std::thread thread_;
};

}  // namespace kvcachefs
