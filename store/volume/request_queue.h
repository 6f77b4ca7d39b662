// The order in which an engine starts requests: urgent ones first, the others held back while more than a few urgent
// ones are in flight, and writes while somebody reads. Not thread-safe: the engine that owns it guards it.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "store/base/units.h"
#include "store/volume/io_engine.h"

namespace kvcachefs {

class RequestQueue {
 public:
  // So many urgent requests may be in flight while a background one is started.
  static constexpr unsigned kFewUrgent = 4;
  // After so many urgent starts one background request goes even so: demand may slow write-back, never stop it.
  static constexpr unsigned kUrgentPerBackground = 16;
  // So many bytes of background writes are in flight while somebody reads, or one request: a device works off what it was
  // given in turn, and 64 MiB before a read are 50 to 100 ms. (9 MiB read by fio beside writes of 4 MiB, 8 or 2 of them in
  // flight: p99 of a request 31 to 44 against 21 to 27 ms, of the writes' rate a half to two thirds left.)
  static constexpr uint64_t kWriteBytesBesideReads = 8 * kMiB;
  // Somebody does for so long after his last read: the next one of a serial reader is on its way. Nothing has to be woken
  // when it ends, because some write is in flight then, if any waits.
  static constexpr std::chrono::milliseconds kStillReads{20};

  // At most `max_background` background requests are in flight, so that urgent ones find room, and of these reads of no
  // more than `max_background_read_bytes` together (or one larger one).
  RequestQueue(unsigned max_background, uint64_t max_background_read_bytes)
      : max_background_(max_background), max_background_read_bytes_(max_background_read_bytes) {}

  void push(QueuedRequest request);
  // The next to start, now counted as in flight; nothing if none may start. `others_read`: reads are expected on the volume
  // that do not come through here.
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
  Clock::time_point reads_until_{};  // somebody counts as reading
  bool being_read_ = false;
  bool write_is_next_ = false;          // where both may start
  unsigned urgent_since_background_ = 0;
};

}  // namespace kvcachefs
