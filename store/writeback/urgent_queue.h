// The queue of the urgent lane: calls that wait until a body is durable.
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
  uint64_t content_version = 0;  // of the object, to be journaled before the answer
  bool sync = false;
  StatusCompletion done;
};

// Thread-safe; its locks are leaves, which may be taken with an object locked. One thread, the urgent lane, takes from it.
class UrgentQueue {
 public:
  void add(UrgentItem item) { items_.add(std::move(item)); }
  std::vector<UrgentItem> take() { return items_.take(); }
  // Puts aside an item whose object is being sealed by another thread, until requeue_deferred(). Caller holds the lock of the object,
  // so that the seal cannot end meanwhile.
  void defer(UrgentItem item);
  // A seal ended: puts all deferred items back.
  void requeue_deferred();
  bool wait() { return items_.wait(); }
  void stop() { items_.stop(); }

 private:
  BlockingQueue<UrgentItem> items_;
  LeafMutex mutex_;
  std::vector<UrgentItem> deferred_;
};

}  // namespace kvcachefs
