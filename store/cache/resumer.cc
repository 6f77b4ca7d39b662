#include "store/cache/resumer.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "store/base/thread.h"

namespace kvcachefs {

Status Resumer::start() {
  {
    std::lock_guard lock(mutex_);
    running_ = true;
  }
  KVC_ASSIGN(thread_, start_thread("kvc-resumer", [this] { run(); }));
  return {};
}

// Answers that arrive after this wait for give_answers(): the owner drains them.
void Resumer::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Resumer::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto some_wait = [this] { return !waiters_.nobody_waits(); };
      const auto woken = [this] { return stopping_ || memory_came_back_ || !answers_.empty(); };
      if (!some_wait())
        ready_.wait(lock, [&] { return stopping_ || !answers_.empty() || (memory_came_back_ && some_wait()); });
      else
        ready_.wait_for(lock, std::chrono::milliseconds(20), woken);
      if (stopping_) return;
      memory_came_back_ = false;
    }
    give_answers();
    resume();
    if (!waiters_.nobody_waits()) parts_.hurry();
  }
}

void Resumer::wait(MemoryWaiters::Kind kind, ObjectId object, uint64_t lacks_bytes, MemoryWaiters::Retry retry,
                   MemoryWaiters::GiveUp give_up) {
  waiters_.add(kind, object, lacks_bytes, parts_.clock.monotonic_ns(), std::move(retry), std::move(give_up));
  memory_came_back();
  parts_.hurry();
}

void Resumer::memory_came_back() {
  std::lock_guard lock(mutex_);
  memory_came_back_ = true;
  ready_.notify_one();
}

void Resumer::answer_later(Answer answer) {
  {
    std::lock_guard lock(mutex_);
    if (running_) {
      answers_.push_back(std::move(answer));
      ready_.notify_one();
      return;
    }
  }
  answer();
}

void Resumer::give_answers() {
  std::vector<Answer> answers;
  {
    std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  for (Answer& answer : answers) answer();
}

}  // namespace kvcachefs
