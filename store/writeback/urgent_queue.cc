#include "store/writeback/urgent_queue.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

void UrgentQueue::add(UrgentItem item) {
  {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  ready_.notify_one();
}

std::deque<UrgentItem> UrgentQueue::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(items_, {});
}

void UrgentQueue::defer(UrgentItem item) {
  std::lock_guard lock(mutex_);
  deferred_.push_back(std::move(item));
}

void UrgentQueue::put_back(UrgentItem item) {
  std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
}

void UrgentQueue::requeue_deferred() {
  {
    std::lock_guard lock(mutex_);
    if (deferred_.empty()) return;
    for (UrgentItem& item : deferred_) items_.push_back(std::move(item));
    deferred_.clear();
  }
  ready_.notify_one();
}

bool UrgentQueue::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return stopping_ || !items_.empty(); });
  return !items_.empty();
}

void UrgentQueue::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
}

}  // namespace kvcachefs
