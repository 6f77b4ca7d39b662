#include "fs/opener_threads.h"

#include <utility>

#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

void OpenerThreads::run(Work work) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && has_thread()) {
      queue_.push_back(std::move(work));
      ready_.notify_one();
      return;
    }
  }
  work();
}

// True if a thread will take the work that is queued next. Starts one more thread if all are busy. mutex_ held.
bool OpenerThreads::has_thread() {
  if (queue_.size() >= idle_ && threads_.size() < kMostThreads) {
    auto started = start_thread("kvc-passthru", [this] { work(); });
    if (started)
      threads_.push_back(*std::move(started));
    else  // the existing threads do the work
      log::debug("no more threads that open files: {}", started.error().message);
  }
  return !threads_.empty();
}

void OpenerThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    ready_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    Work next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    next();
    next = nullptr;
    lock.lock();
  }
}

void OpenerThreads::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    ready_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvcachefs
