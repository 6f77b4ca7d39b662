#include "fs/side_thread.h"

#include <utility>

#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

void SideThread::run(std::function<void()> job) {
  bool here_alone = false;
  {
    std::lock_guard lock(mutex_);
    here_alone = stopping_;
    if (!here_alone) {
      jobs_.push_back(std::move(job));
      if (std::exchange(working_, true) || start()) return;
    }
  }
  // In place of the thread, jobs also run one after another: this call runs the jobs that others add meanwhile.
  here_alone ? job() : work();
}

// With mutex_ held. Returns false if no thread can be started.
bool SideThread::start() {
  if (thread_.joinable()) thread_.join();  // it found no jobs and does not take the mutex again
  auto started = start_thread("kvc-side", [this] { work(); });
  if (!started) {
    log::debug("no thread beside those that take requests: {}", started.error().message);
    return false;
  }
  thread_ = *std::move(started);
  return true;
}

void SideThread::work() {
  while (true) {
    std::vector<std::function<void()>> taken;
    {
      std::lock_guard lock(mutex_);
      taken.swap(jobs_);
      working_ = !taken.empty();
      if (!working_) return;
    }
    for (auto& job : taken) std::exchange(job, nullptr)();  // a job that failed may leave the answer to the end of its Request
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
