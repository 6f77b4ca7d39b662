// Resumes requests that wait for memory, and gives answers that may block, on its own thread.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/cache/memory_waiters.h"

namespace kvcachefs {

// Thread-safe. One thread, kvc-resumer; without it (tests) the owner calls resume(), and answers are given at once.
class Resumer {
 public:
  using Answer = std::move_only_function<void()>;
  struct Parts {
    Clock& clock;
    std::function<void()> hurry;  // starts writing dirty bytes out, which gives memory back; must not block
  };
  explicit Resumer(Parts parts) : parts_(std::move(parts)) {}
  ~Resumer() { stop(); }

  Status start();
  void stop();

  MemoryWaiters& waiters() { return waiters_; }
  const MemoryWaiters& waiters() const { return waiters_; }
  // Queues the request; it is tried again soon, because memory may have come back since the refusal.
  void wait(MemoryWaiters::Kind kind, ObjectId object, uint64_t lacks_bytes, MemoryWaiters::Retry retry, MemoryWaiters::GiveUp give_up);
  // Memory came back, or may have. Never blocks.
  void memory_came_back();
  // For a thread of the volume, which must not block.
  void answer_later(Answer answer);

  bool resume() { return waiters_.resume(parts_.clock.monotonic_ns()); }
  // Gives the queued answers, on the caller's thread.
  void give_answers();

 private:
  void run();

  const Parts parts_;
  MemoryWaiters waiters_;
  InnerMutex mutex_;
  ConditionVariable ready_;
  bool memory_came_back_ = false;
  bool running_ = false, stopping_ = false;
  std::vector<Answer> answers_;
  std::thread thread_;
};

}  // namespace kvcachefs
