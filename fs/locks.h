// Requests about locks: what the kernel asks of them, in terms of the lock table.
#pragma once

#include <mutex>
#include <thread>

#include "fs/lock_table.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// The table, and the thread that answers what does not wait for long. Thread-safe. The thread starts when it is first needed.
class FileLocks {
 public:
  ~FileLocks() { stop(); }
  LockTable table;

  // After a request that may wait for a moment only. Where no thread can be started, such are refused at once.
  void watch();
  // Interrupts all that wait, and ends the thread.
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
