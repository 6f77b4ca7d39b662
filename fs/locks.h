// Requests about locks, translated into requests of the lock table.
#pragma once

#include <mutex>
#include <thread>

#include "fs/lock_table.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// The lock table, and the thread that ends short waits (LockTable::expire). Thread-safe. The thread starts when it is first needed.
class FileLocks {
 public:
  ~FileLocks() { stop(); }
  LockTable table;

  // Call after a request that may wait for LockTable::kCloseNs only. If no thread can be started, refuses all such requests at once.
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
