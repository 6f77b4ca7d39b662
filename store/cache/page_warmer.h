// Clears pages before a request needs them: the first touch of a huge page takes a millisecond, and twenty if a host has to back it first.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "store/base/result.h"
#include "store/base/work_queue.h"
#include "store/memory/memory_file.h"
#include "store/memory/pool.h"

namespace kvcachefs {

// Thread-safe; its lock is that of Wakeup, a leaf. One thread of low priority, kvc-warmer.
class PageWarmer {
 public:
  struct Parts {
    MemoryPool& pool;
    MemoryFiles& files;
    std::function<void()> first;  // runs first and once on the thread
  };
  explicit PageWarmer(Parts parts) : parts_(std::move(parts)) {}
  ~PageWarmer() { stop(); }

  Status start();
  void stop();
  void kick() { wakeup_.wake(); }
  // True once half of the ready pages were taken: not before, so that a restore that finds enough is not disturbed.
  bool is_due() const;
  // The RAM to have ready ahead of need.
  uint64_t ahead_bytes() const;

 private:
  void run();

  const Parts parts_;
  Wakeup wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace kvcachefs
