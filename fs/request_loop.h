// The loop that takes requests from the kernel and has them handled, with as few threads awake as the work needs.
//
// A serial reader sends one request at a time and waits for it: each one handed to a sleeping thread costs a wake-up, which
// is more than the work itself. So one thread, the *waiter*, waits for requests and handles them itself; it polls for a
// moment before it sleeps, because the next request of such a reader is some microseconds away. The others are parked and
// are called
//  - when requests queue up: those called go on for as long as they find some;
//  - when the waiter has been handling one request for a tick: the parked thread that watches becomes the waiter.
// A called thread that finds no request becomes the waiter if the waiter is busy, else it parks. So a handler may block: it occupies one
// thread, and requests that arrive meanwhile wait for a tick or two. A tick is 1 ms (4 ms with one processor) while ticks find the
// waiter busy; they double up to 8 ms while they find it waiting, since they are most of what the loop costs where requests
// are milliseconds apart.
//
// Whether the waiter polls is learned by the kind of the request that it answered last: after LOOKUP comes OPEN at once, but
// after an OPEN that the kernel passes through nothing for as long as the client reads.
//
// While it polls it helps (`Settings::help`): small pieces of work that would otherwise wake a thread on its processor. It leaves
// off before it sleeps, handles a request that is long, or has no pause for it any more.
//
// On a machine with one processor no client has sent anything by the time its reply is written: the waiter waits without a look
// at the device first.
//
// A RELEASE, for which no client waits, is set aside while there are requests that may overtake it: a close and the lookup of
// the next name come together. It is handled while the client is on its way back with the next request, and overtaken by three
// others at most. Its handler must not block: the request that may not overtake it has been taken then, and waits.
//
// Idle, no thread wakes up: the watch ends, in ever longer ticks, some 40 ms after the last request.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "store/base/mutex.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

// Where requests come from: /dev/fuse, or a socket in tests. Thread-safe.
class RequestDevice {
 public:
  static constexpr uint32_t kKinds = 64;

  // One thread's buffers: hold the request that it works on, and one that can wait.
  class Worker {
   public:
    virtual ~Worker() = default;
    // Never blocks. > 0: a request was taken; 0: the device has ended; -EAGAIN: there is none; other -errno: a failure.
    virtual int receive() = 0;
    // The calls below are about the request taken last.
    virtual void process() = 0;
    virtual bool is_short() const = 0;      // it takes less than waking a thread does
    virtual bool is_long() const = 0;       // ... or a hundred times that; most are neither
    virtual uint32_t kind() const = 0;      // below kKinds
    virtual bool may_wait() const = 0;      // no client waits for it to be handled
    virtual bool may_overtake() const = 0;  // its order to a request that was set aside does not matter
    virtual void set_aside() = 0;           // keeps it while others are taken: one at a time
    virtual void process_aside() = 0;       // the one that was set aside
  };
  virtual ~RequestDevice() = default;
  virtual int descriptor() const = 0;  // for poll()
  virtual std::unique_ptr<Worker> make_worker() = 0;
};

class RequestLoop {
 public:
  struct Settings {
    uint32_t threads = 2;
    std::chrono::nanoseconds busy_poll{0};  // before the waiter sleeps, while requests follow each other that fast
    bool one_processor = false;             // that clients and all threads share
    // help(): work for the waiter while it polls, some microseconds a call; false if there is none. leave_off(): the waiter stops
    // helping; may be called by any thread, also when none helps. Set both or none.
    std::function<bool()> help{};
    std::function<void()> leave_off{};
  };
  RequestLoop(RequestDevice& device, Settings settings);
  RequestLoop(const RequestLoop&) = delete;
  RequestLoop& operator=(const RequestLoop&) = delete;

  // Handles requests until stop(), the end of the device (0) or a failure (-errno). Blocks; once.
  int run();
  // Ends run() once the requests in work are handled. From any thread, or a signal handler.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Hand;  // a thread's worker and the requests that it has taken

  void work(uint32_t self);
  int next(Hand& hand);  // the result of receive()
  void take(Hand& hand);
  void process_aside(Hand& hand);
  template <typename Handle>
  void as_busy(const Hand& hand, Handle handle);
  int wait_as_waiter(RequestDevice::Worker& worker);  // the result of receive(); -EAGAIN: look again
  bool become_waiter(uint32_t self);
  bool park(uint32_t self);  // false: the loop has ended
  void call_one();
  void start_watch();
  void end(int result);

  static constexpr uint32_t kNobody = 0;
  static constexpr uint32_t kBusy = 1U << 31;

  RequestDevice& device_;
  const Settings settings_;
  UniqueFd stop_event_;
  std::atomic<bool> stopping_{false};
  // By kind: the last time a request of it had been handled, another came soon.
  std::array<std::atomic<bool>, RequestDevice::kKinds> poll_after_{};
  std::atomic<uint32_t> last_kind_{0};  // that was handled
  // Thread number, from 1, with kBusy while that thread handles a request. Only a busy waiter is replaced.
  std::atomic<uint32_t> waiter_{kNobody};
  std::atomic<uint64_t> received_{0};   // requests taken, by all threads
  std::atomic<uint32_t> parked_{0};     // written with mutex_ held
  std::atomic<bool> unwatched_{false};  // requests have ceased and no thread ticks; written with mutex_ held

  LeafMutex mutex_;  // guards:
  ConditionVariable called_;
  uint32_t calls_ = 0;     // so many parked threads are to look for requests
  bool watching_ = false;  // a parked thread ticks
  bool ended_ = false;
  int result_ = 0;
};

}  // namespace kvcachefs
