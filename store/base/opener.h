// Work that may block, kept off the threads for which others wait.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "store/base/blocking_queue.h"

namespace kvcachefs {

// While one exists its thread must not block: others wait for it, for it takes in what the volume answers, or resumes requests.
// What would open a file or ask the volume for something goes to another thread (Opener).
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

// Thread-safe; its lock is that of BlockingQueue, a leaf. One thread, kvc-opener; without it work is done by the thread that brings it.
class Opener {
 public:
  using Work = std::move_only_function<void()>;
  ~Opener() { stop(); }

  void start();
  // Returns when the thread has done what it was given. From now on such work is done where it comes up.
  void stop();
  // The calling thread must not block, and there is one that may.
  bool is_needed_here() const { return MustNotBlock::here() && runs_.load(std::memory_order_relaxed); }
  // Runs `work` on the calling thread if that may block, else on the opener's.
  void run(Work work);
  // Work that was handed on when the thread was about to end, done by the calling thread. False: there is none.
  bool finish();

 private:
  BlockingQueue<Work> queue_;
  std::atomic<bool> runs_{false};
  std::thread thread_;
};

}  // namespace kvcachefs
