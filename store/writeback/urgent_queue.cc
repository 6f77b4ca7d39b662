#include "store/writeback/urgent_queue.h"

#include <mutex>

namespace kvcachefs {

void UrgentQueue::defer(UrgentItem item) {
  std::lock_guard lock(mutex_);
  deferred_.push_back(std::move(item));
}

void UrgentQueue::requeue_deferred() {
  std::vector<UrgentItem> deferred;
  {
    std::lock_guard lock(mutex_);
    deferred.swap(deferred_);
  }
  for (UrgentItem& item : deferred) items_.add(std::move(item));
}

}  // namespace kvcachefs
