// The loop that takes requests from the kernel and has them handled, with as few threads awake as the work needs.
//
// A serial reader sends one request at a time and waits for the answer. Handing each request to a sleeping thread would cost a wake-up, which
// takes longer than the work itself. So one thread, the *waiter*, waits for requests and handles them itself. It polls for a
// moment before it sleeps, because the next request of such a reader arrives some microseconds later. The other threads are parked and
// are called
//  - when requests queue up: called threads go on for as long as they find requests;
//  - when the waiter has handled one request for a tick: the parked thread that watches becomes the waiter.
// A called thread that finds no request becomes the waiter if the waiter is busy, else it parks. So a handler may block: it occupies one
// thread, and requests that arrive meanwhile wait for a tick or two. A tick is 1 ms (4 ms with one processor) while ticks find the
// waiter busy. Ticks double up to 8 ms while they find it waiting, because they are most of the loop's cost when requests
// are milliseconds apart.
//
// Whether the waiter polls depends on the kind of the request that it answered last: after LOOKUP, OPEN comes at once, but
// after an OPEN that the kernel passes through, nothing comes for as long as the client reads.
//
// While the waiter polls it helps the store (`Settings::help`): it does small pieces of work that would otherwise wake a thread on its processor.
// It stops helping before it sleeps, before it handles a long request, and when short requests arrive without a pause.
//
// What a handler leaves until its answer is out (`Settings::settle`) is done when no request is at hand, before and after a long one, and
// after a few short ones without a pause. Done at once, it would let the next request of a serial reader arrive meanwhile, and the loop would take that
// for a queue.
//
// On a machine with one processor no client can have sent a request by the time its reply is written: the waiter waits without looking
// at the device first.
//
// No client waits for a RELEASE, so it is set aside while there are requests that may overtake it: a close and the lookup of
// the next name arrive together. It is handled while the client prepares its next request, and at most three
// requests overtake it. Its handler must not block: a request that may not overtake it has already been taken then, and waits.
//
// When idle, no thread wakes up: the watch ends, after ever longer ticks, some 40 ms after the last request.
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

  // Buffers of one thread: the request that it works on, and one that was set aside.
  class Worker {
   public:
    virtual ~Worker() = default;
    // Never blocks. Returns > 0: took a request; 0: the device has ended; -EAGAIN: there is no request; other -errno: failure.
    virtual int receive() = 0;
    // The calls below are about the request that receive() took last.
    virtual void process() = 0;
    virtual bool is_short() const = 0;      // handling it takes less time than waking a thread
    virtual bool is_long() const = 0;       // ... or a hundred times that time; most are neither
    virtual uint32_t kind() const = 0;      // below kKinds
    virtual bool may_wait() const = 0;      // no client waits for it to be handled
    virtual bool may_overtake() const = 0;  // it may be handled before the request that was set aside
    virtual void set_aside() = 0;           // keeps it while others are taken; at most one
    virtual void process_aside() = 0;       // handles the request that was set aside
  };
  virtual ~RequestDevice() = default;
  virtual int descriptor() const = 0;  // for poll()
  virtual std::unique_ptr<Worker> make_worker() = 0;
};

class RequestLoop {
 public:
  struct Settings {
    uint32_t threads = 2;
    std::chrono::nanoseconds busy_poll{0};  // time to poll before the waiter sleeps; only while requests follow each other that fast
    bool one_processor = false;             // clients and all threads share one processor
    // Does the work that handlers have left until their answers are out. Must not throw.
    std::function<void()> settle{};
    // help(): does some microseconds of work for the store; called by the waiter while it polls; false if there is none. leave_off(): makes the
    // waiter stop helping; may be called by any thread, also when none helps. Set both or none.
    std::function<bool()> help{};
    std::function<void()> leave_off{};
  };
  RequestLoop(RequestDevice& device, Settings settings);
  RequestLoop(const RequestLoop&) = delete;
  RequestLoop& operator=(const RequestLoop&) = delete;

  // Handles requests until stop(), the end of the device (returns 0) or a failure (-errno). Blocks. Call once. If threads cannot be started (a limit),
  // goes on with those that there are, or with the calling one alone.
  int run();
  // Whether the calling thread is one of a loop: that calls `settle` for it.
  static bool runs_in_this_thread();
  // Makes run() return once the requests being handled are done. May be called by any thread, or a signal handler.
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
  void settle(const Hand& hand);
  int wait_as_waiter(RequestDevice::Worker& worker);  // as receive(); -EAGAIN: look again
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
  // By kind of request: after the last request of that kind, another came soon.
  std::array<std::atomic<bool>, RequestDevice::kKinds> poll_after_{};
  std::atomic<uint32_t> last_kind_{0};  // kind of the request handled last
  // Thread number, from 1, with kBusy while that thread handles a request. Only a busy waiter is replaced.
  std::atomic<uint32_t> waiter_{kNobody};
  std::atomic<uint64_t> received_{0};   // requests taken, by all threads
  std::atomic<uint32_t> parked_{0};     // written with mutex_ held
  std::atomic<bool> unwatched_{false};  // no requests come and no thread ticks; written with mutex_ held

  LeafMutex mutex_;  // guards:
  ConditionVariable called_;
  uint32_t calls_ = 0;     // number of parked threads that must look for requests
  bool watching_ = false;  // a parked thread ticks
  bool ended_ = false;
  int result_ = 0;
};

}  // namespace kvcachefs
