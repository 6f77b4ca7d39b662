// Clears pages before a request waits for them: the first touch of a huge page takes a millisecond, and twenty where a host has
// to back it first.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

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
    std::function<void()> first;  // runs once on the thread, before all else
  };
  explicit PageWarmer(Parts parts) : parts_(std::move(parts)) {}
  ~PageWarmer() { stop(); }

  void start();
  void stop();
  void kick() { wakeup_.wake(); }
  // Half of what lay ready was taken: not before, so that a restore that finds enough is not disturbed.
  bool is_due() const;
  // RAM to have ready ahead of need.
  uint64_t ahead_bytes() const;

 private:
  void run();

  const Parts parts_;
  Wakeup wakeup_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace kvcachefs
