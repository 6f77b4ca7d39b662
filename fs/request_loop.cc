#include "fs/request_loop.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 1ms;           // how long a request may occupy the waiter before another thread replaces it
constexpr auto kLoneTick = 4ms;       // the same with one processor, because each tick takes it from the clients
constexpr auto kLongestTick = 8ms;    // ticks double while they find the waiter waiting, and end with one without a request
constexpr auto kSoon = 10us;          // from a close to the lookup of the next name
constexpr uint32_t kShortInARow = 4;  // so many short requests in a row without a wait are too many for one thread

constinit thread_local bool of_a_loop = false;

bool readable(int descriptor) {
  pollfd device{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&device, 1, 0) > 0;
}

}  // namespace

RequestLoop::RequestLoop(RequestDevice& device, Settings settings)
    : device_(device), settings_(settings), stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

int RequestLoop::run() {
  std::vector<std::thread> threads;
  threads.reserve(settings_.threads);
  while (threads.size() < settings_.threads) {
    auto started = start_thread("kvc-requests", [this, number = static_cast<uint32_t>(threads.size() + 1)] { work(number); });
    if (!started) {
      log::warn("{} of {} threads take requests: {}", std::max<size_t>(threads.size(), 1), settings_.threads, started.error().message);
      break;
    }
    threads.push_back(*std::move(started));
  }
  if (threads.empty()) work(1);
  for (std::thread& thread : threads) thread.join();
  return result_;
}

bool RequestLoop::runs_in_this_thread() { return of_a_loop; }

void RequestLoop::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the descriptor is readable already.
  if (::write(stop_event_.get(), &one, sizeof one) < 0) return;
}

struct RequestLoop::Hand {
  uint32_t self;  // number of the thread
  std::unique_ptr<RequestDevice::Worker> worker;
  uint32_t in_a_row = 0;  // requests taken without a wait
  bool aside = false;     // the worker has set one aside
  bool just_now = false;  // ... and has handled none since
  bool answered = false;  // on one processor: the client has had no time to send another request since
};

void RequestLoop::work(uint32_t self) {
  of_a_loop = true;
  Hand hand{.self = self, .worker = device_.make_worker()};
  while (true) {
    if (stopping_) break;
    int got = next(hand);
    if (got == -EAGAIN) {
      hand.in_a_row = 0;
      if (hand.aside) {
        process_aside(hand);
        continue;
      }
      settle(hand);
      if (!become_waiter(self)) {
        if (!park(self)) return;
        continue;
      }
      got = wait_as_waiter(*hand.worker);
    }
    if (got > 0) {
      take(hand);
    } else if (got != -EAGAIN && got != -EINTR) {
      if (hand.aside) process_aside(hand);
      return end(got);
    }
  }
  if (hand.aside) process_aside(hand);
  end(0);
}

// Takes a request. If one was just set aside, waits for others that may overtake it, as long as a client takes from a close to its next call.
int RequestLoop::next(Hand& hand) {
  if (std::exchange(hand.answered, false) && !hand.aside) return -EAGAIN;
  int got = hand.worker->receive();
  if (got != -EAGAIN || !std::exchange(hand.just_now, false) || settings_.busy_poll.count() == 0) return got;
  const Clock::time_point started = Clock::now();
  do {
    ::sched_yield();
    got = hand.worker->receive();
  } while (got == -EAGAIN && !stopping_ && Clock::now() - started < kSoon);
  return got;
}

// Handles the request that was taken, or sets it aside.
void RequestLoop::take(Hand& hand) {
  received_.fetch_add(1);  // unwatched_ is read after this; park() does the reverse
  ++hand.in_a_row;
  RequestDevice::Worker& worker = *hand.worker;
  if (worker.may_wait() && !hand.aside) {
    worker.set_aside();
    hand.aside = hand.just_now = true;
    return;
  }
  hand.just_now = false;
  if (settings_.leave_off && (worker.is_long() || hand.in_a_row >= kShortInARow)) settings_.leave_off();
  if (hand.aside && (!worker.may_overtake() || hand.in_a_row > kShortInARow)) process_aside(hand);
  if (parked_.load(std::memory_order_relaxed) > 0) {
    // Check for further requests only where the result is worth a system call.
    if (worker.is_short() ? hand.in_a_row >= kShortInARow : readable(device_.descriptor())) call_one();
    if (unwatched_) start_watch();
  }
  if (worker.is_long()) settle(hand);
  as_busy(hand, [&] { worker.process(); });
  if (worker.is_long() || hand.in_a_row % kShortInARow == 0) settle(hand);
  hand.answered = settings_.one_processor;
  last_kind_.store(worker.kind(), std::memory_order_relaxed);
}

void RequestLoop::process_aside(Hand& hand) {
  hand.aside = hand.just_now = false;
  if (unwatched_ && parked_.load(std::memory_order_relaxed) > 0) start_watch();
  as_busy(hand, [&] { hand.worker->process_aside(); });
}

// Runs `handle` with the waiter marked busy. Another thread may replace the waiter meanwhile.
template <typename Handle>
void RequestLoop::as_busy(const Hand& hand, Handle handle) {
  const bool waits = waiter_.load(std::memory_order_relaxed) == hand.self;
  if (waits) waiter_ = hand.self | kBusy;
  handle();
  uint32_t expected = hand.self | kBusy;
  if (waits) waiter_.compare_exchange_strong(expected, hand.self);  // else another has become the waiter
}

void RequestLoop::settle(const Hand& hand) {
  if (settings_.settle) as_busy(hand, settings_.settle);
}

bool RequestLoop::become_waiter(uint32_t self) {
  uint32_t current = waiter_;
  if (current == self) return true;
  if (current != kNobody && (current & kBusy) == 0) return false;
  return waiter_.compare_exchange_strong(current, self);
}

int RequestLoop::wait_as_waiter(RequestDevice::Worker& worker) {
  const bool may_poll = settings_.busy_poll.count() > 0;
  const Clock::time_point started = may_poll ? Clock::now() : Clock::time_point{};
  std::atomic<bool>& poll_first = poll_after_[last_kind_.load(std::memory_order_relaxed)];
  if (may_poll && poll_first.load(std::memory_order_relaxed)) {
    bool helped = false;
    do {
      helped = settings_.help && settings_.help();
      if (!helped) ::sched_yield();  // the client may be waiting for this very processor
      const int got = worker.receive();
      if (got != -EAGAIN || stopping_) return got;
    } while (helped || Clock::now() - started < settings_.busy_poll);
  }
  if (settings_.leave_off) settings_.leave_off();
  pollfd either[] = {{.fd = device_.descriptor(), .events = POLLIN, .revents = 0},
                     {.fd = stop_event_.get(), .events = POLLIN, .revents = 0}};
  ::poll(either, 2, -1);  // an error is a reason to look again, too
  if (may_poll) poll_first.store(Clock::now() - started < settings_.busy_poll, std::memory_order_relaxed);
  return -EAGAIN;
}

// Sleeps until called, or until the waiter must be replaced: this thread is then the waiter.
bool RequestLoop::park(uint32_t self) {
  std::unique_lock lock(mutex_);
  ++parked_;
  const std::chrono::milliseconds shortest = settings_.one_processor ? kLoneTick : kTick;
  auto tick = shortest;
  while (!ended_) {
    if (calls_ > 0) {
      --calls_;
      break;
    }
    if (watching_ || unwatched_) {
      called_.wait(lock);
      continue;
    }
    watching_ = true;
    const uint64_t seen = received_.load(std::memory_order_relaxed);
    called_.wait_for(lock, tick);
    watching_ = false;
    if (calls_ > 0 || ended_) continue;
    const bool busy = (waiter_ & kBusy) != 0, quiet = received_.load(std::memory_order_relaxed) == seen;
    if (busy && quiet && become_waiter(self)) break;
    if (busy)
      tick = shortest;
    else if (tick < kLongestTick)
      tick *= 2;
    else if (quiet) {
      unwatched_ = true;
      if (received_.load() != seen) unwatched_ = false;  // a request came whose thread did not see unwatched_
      tick = shortest;
    }
  }
  --parked_;
  if (parked_ > 0 && !unwatched_ && !watching_) called_.notify_one();  // another one watches
  return !ended_;
}

void RequestLoop::call_one() {
  std::lock_guard lock(mutex_);
  if (calls_ >= parked_) return;
  ++calls_;
  called_.notify_one();
}

void RequestLoop::start_watch() {
  std::lock_guard lock(mutex_);
  unwatched_ = false;
  called_.notify_one();
}

void RequestLoop::end(int result) {
  if (settings_.leave_off) settings_.leave_off();
  std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  result_ = result;
  stop();  // wakes the thread that waits for the device
  called_.notify_all();
}

}  // namespace kvcachefs
