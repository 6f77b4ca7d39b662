// The calls that wait until a body is durable, for the urgent lane.
#pragma once

#include <cstdint>
#include <deque>

#include "store/api/request_types.h"
#include "store/base/mutex.h"
#include "store/object/object.h"

namespace kvcachefs {

struct UrgentItem {
  ObjectPtr object;              // may be null: names only
  uint64_t content_version = 0;  // of it, that must be journaled
  bool sync = false;
  StatusCompletion done;
};

// Thread-safe; mutex_ is a leaf, which may be taken with an object locked. One thread, the urgent lane, takes from it.
class UrgentQueue {
 public:
  void add(UrgentItem item);
  std::deque<UrgentItem> take();
  // Its object is being sealed by another: it comes back with requeue_deferred(). With the object locked, in whose critical
  // section that seal cannot end.
  void defer(UrgentItem item);
  // For the next turn, without a wake-up: by the lane itself.
  void put_back(UrgentItem item);
  // A seal ended.
  void requeue_deferred();
  // Blocks until something waits. False: the queue was stopped, and is empty.
  bool wait();
  void stop();

 private:
  LeafMutex mutex_;
  ConditionVariable ready_;
  std::deque<UrgentItem> items_, deferred_;
  bool stopping_ = false;
};

}  // namespace kvcachefs
