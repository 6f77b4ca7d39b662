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

  // At most `max_background` background requests are in flight, so that urgent ones find room, and of these reads of no
  // more than `max_background_read_bytes` together (or one larger one).
  RequestQueue(unsigned max_background, uint64_t max_background_read_bytes)
      : max_background_(max_background), max_background_read_bytes_(max_background_read_bytes) {}

  void push(QueuedRequest request);
  // The next to start, now counted as in flight; nothing if none may start.
  std::optional<QueuedRequest> next();
  void finished(const IoRequest& request);
  bool empty() const { return urgent_.empty() && background_reads_.empty() && background_writes_.empty(); }

 private:
  bool background_waits() const { return !background_reads_.empty() || !background_writes_.empty(); }
  bool background_may_start() const;
  bool background_is_due() const;
  bool read_may_start() const;
  std::deque<QueuedRequest>* next_background();

  std::deque<QueuedRequest> urgent_;
  std::deque<QueuedRequest> background_reads_;
  std::deque<QueuedRequest> background_writes_;
  unsigned max_background_;
  uint64_t max_background_read_bytes_;
  unsigned urgent_in_flight_ = 0;
  unsigned background_in_flight_ = 0;
  uint64_t background_read_bytes_ = 0;  // in flight
  bool write_is_next_ = false;          // where both may start
  unsigned urgent_since_background_ = 0;
};

}  // namespace kvcachefs
