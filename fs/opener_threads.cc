#include "fs/opener_threads.h"

#include <pthread.h>

#include <utility>

namespace kvcachefs {

void OpenerThreads::run(Work work) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      queue_.push_back(std::move(work));
      if (queue_.size() > idle_ && threads_.size() < kMostThreads) threads_.emplace_back([this] { this->work(); });
      ready_.notify_one();
      return;
    }
  }
  work();
}

void OpenerThreads::work() {
  pthread_setname_np(pthread_self(), "kvc-opens");
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
