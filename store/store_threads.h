// Starts the threads of the store, and ends them with every call answered; without threads, runs one step of each in turn.
#pragma once

#include <atomic>

#include "store/store_rooms.h"

namespace kvcachefs {

// Each class of the rooms owns its thread; this class knows their order. Used by the thread that starts and ends the store.
class StoreThreads {
 public:
  explicit StoreThreads(StoreRooms& rooms) : rooms_(rooms) {}

  // Fails where the process may have no more threads: then none runs.
  Status start();
  bool run() const { return run_; }
  // Returns when no thread runs any more and each call is answered. May be called without start(). Blocks on the volume.
  void stop();
  // True: no further step of a thread begins.
  bool stopped() const { return stopping_; }
  // Replaces the threads: one step of each, in a fixed order. False: there was nothing to do.
  bool pump();

 private:
  Status start_each();
  void answer_waiting();
  void answer_unfinished();
  void finish_handed_on_work();
  void finish_raw_turns();

  StoreRooms& rooms_;
  bool run_ = false;
  std::atomic<bool> stopping_{false};
};

}  // namespace kvcachefs
