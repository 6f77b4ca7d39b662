// The threads of the store: how they begin, and end with everybody answered; without them, one step of each in turn.
#pragma once

#include <atomic>

#include "store/store_rooms.h"

namespace kvcachefs {

// Each class of the rooms owns its thread; this is their order. Used by the thread that starts and ends the store.
class StoreThreads {
 public:
  explicit StoreThreads(StoreRooms& rooms) : rooms_(rooms) {}

  void start();
  bool run() const { return run_; }
  // Returns when no thread runs any more and each call has its answer. Also without start(). Blocks on the volume.
  void stop();
  // No step of theirs is begun any more.
  bool stopped() const { return stopping_; }
  // A step of each, in one order: what there is instead of threads. False: nothing was to be done.
  bool pump();

 private:
  void answer_waiting();
  void answer_unfinished();
  void finish_handed_on_work();
  void finish_raw_turns();

  StoreRooms& rooms_;
  bool run_ = false;
  std::atomic<bool> stopping_{false};
};

}  // namespace kvcachefs
