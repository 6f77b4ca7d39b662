#include "fs/side_thread.h"

#include <pthread.h>

#include <utility>

namespace kvcachefs {

void SideThread::run(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      jobs_.push_back(std::move(job));
      if (working_) return;
      if (thread_.joinable()) thread_.join();  // it has seen that there are no jobs, and takes the mutex no more
      working_ = true;
      thread_ = std::thread([this] { work(); });
      return;
    }
  }
  job();
}

void SideThread::work() {
  pthread_setname_np(pthread_self(), "kvc-side");
  while (true) {
    std::vector<std::function<void()>> taken;
    {
      std::lock_guard lock(mutex_);
      taken.swap(jobs_);
      working_ = !taken.empty();
      if (!working_) return;
    }
    for (auto& job : taken) job();
  }
}

void SideThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace kvcachefs
