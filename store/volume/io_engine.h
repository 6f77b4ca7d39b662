// Asynchronous reads and writes below a PosixVolume: a pool of threads, or io_uring.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Same contract as Volume::submit and Volume::drain. The destructor waits for every request; it must not run on
// a thread of the engine, i.e. inside a `done`. Nothing may be submitted once it has begun.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  virtual void submit(std::vector<IoRequest> requests) = 0;
  virtual void drain() = 0;

  // Same contract as Volume::expect_reads_for.
  void expect_reads_for(std::chrono::nanoseconds time) {
    const int64_t until = since_epoch(Clock::now() + time);
    int64_t before = others_read_until_.load(std::memory_order_relaxed);
    while (before < until && !others_read_until_.compare_exchange_weak(before, until, std::memory_order_relaxed)) {
    }
  }

 protected:
  using Clock = std::chrono::steady_clock;
  bool others_read(Clock::time_point now) const { return since_epoch(now) < others_read_until_.load(std::memory_order_relaxed); }

 private:
  static int64_t since_epoch(Clock::time_point time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); }
  std::atomic<int64_t> others_read_until_{INT64_MIN};  // ns
};

// Background reads in flight take at most so many bytes together (or one larger request): see RequestQueue.
constexpr uint64_t kNoByteLimit = UINT64_MAX;
Result<std::unique_ptr<IoEngine>> make_posix_engine(unsigned threads, uint64_t max_background_read_bytes = kNoByteLimit);
// kUnsupported (with the reason) if the kernel lacks what the engine needs.
Result<std::unique_ptr<IoEngine>> make_uring_engine(unsigned queue_depth,
                                                    uint64_t max_background_read_bytes = kNoByteLimit);

// Counts requests in flight. wait() waits for those begun before it, not for later ones. Thread-safe.
class RequestCounter {
 public:
  // Begins `count` requests and returns their generation; end() must be called with it once for each.
  uint64_t begin(size_t count);
  void end(uint64_t generation);
  void wait();
  // Waits until no request is in flight, including those begun meanwhile.
  void wait_for_all();

 private:
  InnerMutex mutex_;
  ConditionVariable ended_;
  uint64_t generation_ = 1;
  std::map<uint64_t, size_t> under_way_;  // by generation; no zeros
};

// A request and the generation in which it was begun.
struct QueuedRequest {
  IoRequest request;
  uint64_t generation = 0;
};

}  // namespace kvcachefs
