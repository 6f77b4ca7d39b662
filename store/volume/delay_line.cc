#include "store/volume/delay_line.h"

namespace kvcachefs {

DelayLine::~DelayLine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DelayLine::push(IoRequest request, int64_t delay_ns) {
  const Time due = std::chrono::steady_clock::now() + std::chrono::nanoseconds(delay_ns);
  const std::lock_guard lock(mutex_);
  waiting_.emplace(due, std::move(request));
  ++pushed_;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void DelayLine::wait() {
  std::unique_lock lock(mutex_);
  const uint64_t target = pushed_;
  changed_.wait(lock, [&] { return passed_ >= target && waiting_.empty(); });
}

void DelayLine::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (waiting_.empty()) {
      if (stopping_) return;
      changed_.wait(lock);
      continue;
    }
    const Time due = waiting_.begin()->first;
    if (!stopping_ && due > std::chrono::steady_clock::now()) {
      changed_.wait_until(lock, due);
      continue;
    }
    IoRequest request = std::move(waiting_.extract(waiting_.begin()).mapped());
    lock.unlock();
    pass_on_(std::move(request));
    lock.lock();
    ++passed_;
    changed_.notify_all();
  }
}

}  // namespace kvcachefs
