// The order in which an engine starts requests: urgent ones first. Background requests are held back while more than a few urgent
// ones are in flight, and background writes also while reads are going on. Not thread-safe: the owning engine guards it.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "store/base/units.h"
#include "store/volume/io_engine.h"

namespace kvcachefs {

class RequestQueue {
 public:
  // A background request starts only while at most so many urgent ones are in flight.
  static constexpr unsigned kFewUrgent = 4;
  // After so many urgent starts one background request starts even so: demand may slow write-back, but never stop it.
  static constexpr unsigned kUrgentPerBackground = 16;
  // While reads are going on, background writes in flight take at most so many bytes, or one request: a device works in
  // order, and 64 MiB ahead of a read take 50 to 100 ms. (fio reading 9 MiB beside writes of 4 MiB, 8 or 2 of them in
  // flight: p99 of a request 31 to 44 against 21 to 27 ms; the writes kept a half to two thirds of their rate.)
  static constexpr uint64_t kWriteBytesBesideReads = 8 * kMiB;
  // Reads count as going on for so long after the last one: a serial reader is about to send the next. No wake-up is needed
  // when this time ends: if writes are waiting then, some write is in flight.
  static constexpr std::chrono::milliseconds kStillReads{20};

  // At most `max_background` background requests are in flight, so that urgent ones find slots; reads among them take at
  // most `max_background_read_bytes` together (or one larger read).
  RequestQueue(unsigned max_background, uint64_t max_background_read_bytes)
      : max_background_(max_background), max_background_read_bytes_(max_background_read_bytes) {}

  void push(QueuedRequest request);
  // The next request to start, now counted as in flight; nullopt if none may start. `others_read`: reads of the volume are expected
  // that bypass this queue.
  using Clock = std::chrono::steady_clock;
  std::optional<QueuedRequest> next(Clock::time_point now, bool others_read);
  void finished(const IoRequest& request);
  bool empty() const { return urgent_.empty() && background_reads_.empty() && background_writes_.empty(); }

 private:
  bool background_waits() const { return !background_reads_.empty() || !background_writes_.empty(); }
  bool background_may_start() const;
  bool background_is_due() const;
  bool read_may_start() const;
  bool write_may_start() const;
  std::deque<QueuedRequest>* next_background();

  std::deque<QueuedRequest> urgent_;
  std::deque<QueuedRequest> background_reads_;
  std::deque<QueuedRequest> background_writes_;
  unsigned max_background_;
  uint64_t max_background_read_bytes_;
  unsigned urgent_in_flight_ = 0;
  unsigned background_in_flight_ = 0;
  uint64_t background_read_bytes_ = 0;  // in flight
  uint64_t background_write_bytes_ = 0;
  unsigned reads_ = 0;  // in flight or queued, urgent or not
  bool read_ended_ = false;          // since next()
  Clock::time_point reads_until_{};  // until then reads count as going on
  bool being_read_ = false;
  bool write_is_next_ = false;          // if both a read and a write may start
  unsigned urgent_since_background_ = 0;
};

}  // namespace kvcachefs
