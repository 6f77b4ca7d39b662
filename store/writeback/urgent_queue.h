// The calls that wait until a body is durable, for the urgent lane.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/blocking_queue.h"
#include "store/base/mutex.h"
#include "store/object/object.h"

namespace kvcachefs {

struct UrgentItem {
  ObjectPtr object;              // may be null: names only
  uint64_t content_version = 0;  // of it, that must be journaled
  bool sync = false;
  StatusCompletion done;
};

// Thread-safe; its locks are leaves, which may be taken with an object locked. One thread, the urgent lane, takes from it.
class UrgentQueue {
 public:
  void add(UrgentItem item) { items_.add(std::move(item)); }
  std::vector<UrgentItem> take() { return items_.take(); }
  // Its object is being sealed by another: it comes back with requeue_deferred(). With the object locked, in whose critical
  // section that seal cannot end.
  void defer(UrgentItem item);
  // A seal ended.
  void requeue_deferred();
  bool wait() { return items_.wait(); }
  void stop() { items_.stop(); }

 private:
  BlockingQueue<UrgentItem> items_;
  LeafMutex mutex_;
  std::vector<UrgentItem> deferred_;
};

}  // namespace kvcachefs
