// Handlers of lock requests: they translate them into requests to the lock table.
#pragma once

#include <mutex>
#include <thread>

#include "fs/lock_table.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// The lock table, and the thread that calls LockTable::expire(). Thread-safe. The thread starts when it is first needed.
class FileLocks {
 public:
  ~FileLocks() { stop(); }
  LockTable table;

  // Call after each request that may be held back for LockTable::kCloseNs. If no thread can be started, refuses all such requests at once.
  void watch();
  // Interrupts all waits and ends the thread.
  void stop();

 private:
  bool has_thread();
  void run();

  LeafMutex mutex_;  // guards:
  ConditionVariable ready_;
  bool kicked_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace kvcachefs
