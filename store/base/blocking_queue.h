// A queue with many adding threads and one taking thread.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe; a leaf.
template <class Item>
class BlockingQueue {
 public:
  void add(Item item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
  }
  // Takes all items, in the order in which they were added; may return none. Does not block.
  std::vector<Item> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }
  // Blocks until there is an item. False: the queue was stopped and is empty.
  bool wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return stopping_ || !items_.empty(); });
    return !items_.empty();
  }
  // Ends wait(). Items can still be added and taken.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ready_.notify_all();
  }

 private:
  LeafMutex mutex_;
  ConditionVariable ready_;
  std::vector<Item> items_;
  bool stopping_ = false;
};

}  // namespace kvcachefs
