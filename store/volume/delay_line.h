// Delays requests, then passes them on. Submitting through it never blocks.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "store/base/mutex.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class DelayLine {
 public:
  // The line's own thread calls `pass_on`, with no lock held.
  explicit DelayLine(std::function<void(IoRequest)> pass_on) : pass_on_(std::move(pass_on)) {}
  ~DelayLine();  // passes on the remaining requests at once
  void push(IoRequest request, int64_t delay_ns);
  // Waits until every request pushed so far has been passed on.
  void wait();

 private:
  using Time = std::chrono::steady_clock::time_point;
  void run();

  const std::function<void(IoRequest)> pass_on_;
  InnerMutex mutex_;
  ConditionVariable changed_;
  std::multimap<Time, IoRequest> waiting_;
  uint64_t pushed_ = 0;
  uint64_t passed_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // started by the first push
};

}  // namespace kvcachefs
