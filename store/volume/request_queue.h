// The order in which an engine starts requests: urgent ones first, the others held back while more than a few urgent
// ones are in flight. Not thread-safe: the engine that owns it guards it.
#pragma once

#include <deque>
#include <optional>

#include "store/volume/io_engine.h"

namespace kvcachefs {

class RequestQueue {
 public:
  // So many urgent requests may be in flight while a background one is started.
  static constexpr unsigned kFewUrgent = 4;
  // After so many urgent starts one background request goes even so: demand may slow write-back, never stop it.
  static constexpr unsigned kUrgentPerBackground = 16;

  // At most `max_background` background requests are in flight, so that urgent ones find room.
  explicit RequestQueue(unsigned max_background) : max_background_(max_background) {}

  void push(QueuedRequest request);
  // The next to start, now counted as in flight; nothing if none may start.
  std::optional<QueuedRequest> next();
  void finished(bool urgent);
  bool empty() const { return urgent_.empty() && background_.empty(); }

 private:
  bool background_may_start() const;
  bool background_is_due() const;

  std::deque<QueuedRequest> urgent_;
  std::deque<QueuedRequest> background_;
  unsigned max_background_;
  unsigned urgent_in_flight_ = 0;
  unsigned background_in_flight_ = 0;
  unsigned urgent_since_background_ = 0;
};

}  // namespace kvcachefs
