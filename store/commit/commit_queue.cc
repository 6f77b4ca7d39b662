#include "store/commit/commit_queue.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

void CommitQueue::add(CommitRequest request) {
  {
    std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    in_work_.fetch_add(1);
  }
  ready_.notify_one();
}

std::vector<CommitRequest> CommitQueue::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(requests_, {});
}

bool CommitQueue::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return stopping_ || !requests_.empty(); });
  return !requests_.empty();
}

void CommitQueue::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
}

}  // namespace kvcachefs
