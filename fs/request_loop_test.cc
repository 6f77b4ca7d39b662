// The request loop on a socket in place of /dev/fuse: a message is a request, and its byte tells the handler what to do.
#include "fs/request_loop.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvcachefs {
namespace request_loop_test {

using namespace std::chrono_literals;

enum Kind : char { kShort = 's', kLong = 'l', kBlocks = 'b', kWaits = 'w' };

class SocketDevice : public RequestDevice {
 public:
  SocketDevice() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    ours_.reset(ends[0]);
    theirs_.reset(ends[1]);
  }
  int descriptor() const override { return ours_.get(); }
  std::unique_ptr<Worker> make_worker() override { return std::make_unique<SocketWorker>(*this); }

  void request(Kind kind) {
    while (::send(theirs_.get(), &kind, 1, MSG_NOSIGNAL) < 0) std::this_thread::yield();  // full
  }
  void await_handled(uint64_t count) const {
    while (handled_ < count) std::this_thread::sleep_for(1ms);
  }
  void await_blocked(uint64_t count) const {
    while (blocked_ < count) std::this_thread::sleep_for(1ms);
  }
  void release() {
    blocking_ = false;
    blocking_.notify_all();
  }
  void disconnect() { theirs_.reset(-1); }
  void fail_with(int error) {
    error_ = error;
    request(kShort);
  }
  uint64_t handled() const { return handled_; }
  // The kinds, in the order in which they were handled.
  std::string order() const {
    std::lock_guard lock(mutex_);
    return order_;
  }
  uint64_t receives() const { return receives_; }
  // Notes in the order that something else is done; once if nothing is handled in between.
  void mark(char what) {
    std::lock_guard lock(mutex_);
    if (!order_.ends_with(what)) order_ += what;
  }

 private:
  class SocketWorker : public Worker {
   public:
    explicit SocketWorker(SocketDevice& device) : device_(device) {}
    int receive() override {
      ++device_.receives_;
      if (device_.error_ != 0) return device_.error_;
      const ssize_t got = ::recv(device_.ours_.get(), &kind_, 1, 0);
      return got < 0 ? -errno : static_cast<int>(got);
    }
    void process() override {
      if (kind_ == kBlocks) {
        ++device_.blocked_;
        device_.blocking_.wait(true);
      }
      device_.note(kind_);
    }
    bool is_short() const override { return kind_ == kShort; }
    bool is_long() const override { return kind_ == kLong; }
    uint32_t kind() const override { return static_cast<uint32_t>(kind_) % kKinds; }
    bool may_wait() const override { return kind_ == kWaits; }
    bool may_overtake() const override { return kind_ == kShort; }
    void set_aside() override { aside_ = std::exchange(kind_, 0); }
    void process_aside() override { device_.note(std::exchange(aside_, 0)); }

   private:
    SocketDevice& device_;
    char kind_ = 0, aside_ = 0;
  };
  void note(char kind) {
    {
      std::lock_guard lock(mutex_);
      order_ += kind;
    }
    ++handled_;
  }

  UniqueFd ours_, theirs_;
  mutable std::mutex mutex_;
  std::string order_;
  std::atomic<bool> blocking_{true};
  std::atomic<int> error_{0};
  std::atomic<uint64_t> handled_{0}, blocked_{0}, receives_{0};
};

// A loop that runs until the end of the test.
class Running {
 public:
  Running(RequestDevice& device, RequestLoop::Settings settings) : loop(device, settings), thread_([this] { result = loop.run(); }) {}
  ~Running() {
    if (!thread_.joinable()) return;
    loop.stop();
    thread_.join();
  }
  int join() {
    thread_.join();
    return result;
  }
  RequestLoop loop;
  int result = 1;

 private:
  std::thread thread_;
};

struct How {
  const char* name;
  std::chrono::nanoseconds busy_poll;
  bool one_processor;
};

class RequestLoopTest : public testing::TestWithParam<How> {
 protected:
  RequestLoop::Settings settings(uint32_t threads) const {
    return {.threads = threads, .busy_poll = GetParam().busy_poll, .one_processor = GetParam().one_processor};
  }
  SocketDevice device_;
};

TEST_P(RequestLoopTest, EveryRequestOfManyClientsIsHandledOnce) {
  constexpr uint64_t kClients = 4, kRequests = 5000;
  Running running(device_, settings(4));
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < kClients; ++client)
    clients.emplace_back([&] {
      for (uint64_t i = 0; i < kRequests; ++i) device_.request(i % 3 == 0 ? kLong : kShort);
    });
  for (std::thread& client : clients) client.join();
  device_.await_handled(kClients * kRequests);
  running.loop.stop();
  EXPECT_EQ(running.join(), 0);
  EXPECT_EQ(device_.handled(), kClients * kRequests);
}

TEST_P(RequestLoopTest, ASerialClientIsAnsweredByAnyNumberOfThreads) {
  for (uint32_t threads : {1U, 2U, 8U}) {
    SocketDevice device;
    Running running(device, settings(threads));
    for (uint64_t i = 1; i <= 2000; ++i) {
      device.request(kShort);
      while (device.handled() < i) std::this_thread::yield();
    }
  }
}

TEST_P(RequestLoopTest, HandlersThatBlockLeaveTheLastThreadToTheOthers) {
  Running running(device_, settings(4));
  for (int i = 0; i < 3; ++i) device_.request(kBlocks);
  device_.await_blocked(3);
  for (int i = 0; i < 100; ++i) device_.request(kShort);
  device_.await_handled(100);
  device_.release();
  device_.await_handled(103);
}

TEST_P(RequestLoopTest, AHandlerThatBlocksAfterAPauseIsNoticed) {
  Running running(device_, settings(2));
  for (uint64_t round = 0; round < 3; ++round) {
    device_.request(kShort);
    device_.await_handled(round + 1);
    std::this_thread::sleep_for(60ms);  // nobody watches any more
  }
  device_.request(kBlocks);
  device_.await_blocked(1);
  device_.request(kShort);
  device_.await_handled(4);
  device_.release();
  device_.await_handled(5);
}

TEST_P(RequestLoopTest, AllThreadsWorkAtOnceIfTheyMust) {
  constexpr uint32_t kThreads = 6;
  Running running(device_, settings(kThreads));
  for (uint32_t i = 0; i < kThreads; ++i) device_.request(kBlocks);
  device_.await_blocked(kThreads);
  device_.release();
  device_.await_handled(kThreads);
}

TEST_P(RequestLoopTest, WhatNobodyWaitsForIsOvertakenByWhatMay) {
  for (Kind kind : {kWaits, kShort, kShort, kWaits, kLong, kWaits, kWaits}) device_.request(kind);
  Running running(device_, settings(1));
  device_.await_handled(7);
  EXPECT_EQ(device_.order(), "ssw" "wl" "ww");
}

TEST_P(RequestLoopTest, WhatNobodyWaitsForIsOvertakenByAFewOnly) {
  device_.request(kWaits);
  for (int i = 0; i < 20; ++i) device_.request(kShort);
  Running running(device_, settings(1));
  device_.await_handled(21);
  EXPECT_EQ(device_.order(), "sssw" + std::string(17, 's'));
}

TEST_P(RequestLoopTest, WhatWasSetAsideIsHandledThoughNothingFollows) {
  Running running(device_, settings(2));
  for (uint64_t i = 1; i <= 20; ++i) {
    device_.request(kWaits);
    device_.await_handled(i);
  }
}

TEST_P(RequestLoopTest, WhatWasSetAsideIsHandledBeforeTheLoopEnds) {
  device_.request(kWaits);
  device_.disconnect();
  Running running(device_, settings(1));
  EXPECT_EQ(running.join(), 0);
  EXPECT_EQ(device_.order(), "w");
}

TEST_P(RequestLoopTest, NobodyWakesUpWhenThereIsNothingToDo) {
  Running running(device_, settings(3));
  for (int i = 0; i < 100; ++i) device_.request(kLong);
  device_.await_handled(100);
  const auto is_quiet = [&] {
    const uint64_t before = device_.receives();
    std::this_thread::sleep_for(500ms);
    return device_.receives() == before;
  };
  bool quiet = false;
  for (int i = 0; i < 120 && !quiet; ++i) quiet = is_quiet();  // until the watch has ended, however slow the machine is
  EXPECT_TRUE(quiet);
}

TEST_P(RequestLoopTest, StopEndsALoopThatSleeps) {
  for (uint32_t threads : {1U, 4U}) {
    SocketDevice device;
    Running running(device, settings(threads));
    std::this_thread::sleep_for(20ms);
    running.loop.stop();
    EXPECT_EQ(running.join(), 0);
  }
}

TEST_P(RequestLoopTest, StopBeforeTheStartEndsItAtOnce) {
  RequestLoop loop(device_, settings(3));
  loop.stop();
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(RequestLoopTest, StopLetsHandlersFinish) {
  Running running(device_, settings(3));
  device_.request(kBlocks);
  device_.await_blocked(1);
  running.loop.stop();
  std::thread releaser([&] {
    std::this_thread::sleep_for(20ms);
    device_.release();
  });
  EXPECT_EQ(running.join(), 0);
  EXPECT_EQ(device_.handled(), 1U);
  releaser.join();
}

RequestLoop* loop_of_the_signal = nullptr;

TEST_P(RequestLoopTest, ASignalHandlerMayStopIt) {
  Running running(device_, settings(3));
  loop_of_the_signal = &running.loop;
  auto previous = std::signal(SIGUSR1, [](int) { loop_of_the_signal->stop(); });
  std::raise(SIGUSR1);
  EXPECT_EQ(running.join(), 0);
  std::signal(SIGUSR1, previous);
}

TEST_P(RequestLoopTest, TheEndOfTheDeviceEndsTheLoop) {
  Running running(device_, settings(3));
  device_.request(kShort);
  device_.await_handled(1);
  device_.disconnect();
  EXPECT_EQ(running.join(), 0);
}

TEST_P(RequestLoopTest, AFailureOfTheDeviceIsReported) {
  Running running(device_, settings(3));
  device_.fail_with(-EIO);
  EXPECT_EQ(running.join(), -EIO);
}

// --- help ---

// Counts what the loop does of it.
class Helped {
 public:
  RequestLoop::Settings settings(uint32_t threads) {
    return {.threads = threads,
            .busy_poll = 1s,
            .one_processor = false,
            .help = [this] {
              helping = true;
              const bool any = pieces > 0;
              if (any) --pieces;
              return any;
            },
            .leave_off = [this] {
              if (helping.exchange(false)) ++left;
            }};
  }
  void await(const std::function<bool()>& what) const {
    while (!what()) std::this_thread::sleep_for(1ms);
  }
  // Requests that follow each other soon, until the loop polls after them.
  void teach(SocketDevice& device) const {
    for (uint64_t handled = device.handled(); !helping;) {
      device.request(kShort);
      device.await_handled(++handled);
    }
  }
  std::atomic<int> pieces{0}, left{0};
  std::atomic<bool> helping{false};
};

TEST(RequestLoopHelp, WhoPollsHelpsUntilThereIsNothingToDo) {
  SocketDevice device;
  Helped helped;
  Running running(device, helped.settings(2));
  helped.teach(device);
  helped.pieces = 50;
  for (uint64_t handled = device.handled(); helped.pieces > 0;) {
    device.request(kShort);
    device.await_handled(++handled);
  }
}

TEST(RequestLoopHelp, ItIsLeftOffForALongRequestAndBeforeTheLoopSleepsOrEnds) {
  SocketDevice device;
  Helped helped;
  Running running(device, helped.settings(1));
  helped.teach(device);
  const int before = helped.left;
  const uint64_t handled = device.handled();
  device.request(kLong);
  device.await_handled(handled + 1);
  EXPECT_GT(helped.left, before);
  helped.teach(device);
  helped.await([&] { return !helped.helping.load(); });  // a second without a request
  helped.teach(device);
  running.loop.stop();
  EXPECT_EQ(running.join(), 0);
  EXPECT_FALSE(helped.helping);
}

TEST(RequestLoopHelp, ItIsLeftOffWhereTheDeviceEnds) {
  SocketDevice device;
  Helped helped;
  Running running(device, helped.settings(1));
  helped.teach(device);
  device.disconnect();
  EXPECT_EQ(running.join(), 0);
  EXPECT_FALSE(helped.helping);
}

TEST(RequestLoopHelp, NobodyHelpsWhoHasNoPause) {
  constexpr uint64_t kRequests = 20;
  SocketDevice device;
  Helped helped;
  for (uint64_t i = 0; i < kRequests; ++i) device.request(kShort);
  helped.helping = true;  // as if before
  Running running(device, helped.settings(1));
  device.await_handled(kRequests);
  EXPECT_GT(helped.left, 0);
}

// --- what is left until the answer is out ---

TEST(RequestLoopSettle, IsDoneInPausesAroundLongRequestsAndAfterAFewShortOnes) {
  SocketDevice device;
  for (const Kind kind : {kShort, kShort, kShort, kShort, kShort, kLong, kShort}) device.request(kind);
  Running running(device, {.threads = 1, .busy_poll = 0ns, .one_processor = false, .settle = [&] { device.mark(RequestLoop::runs_in_this_thread() ? '.' : '!'); }});
  EXPECT_FALSE(RequestLoop::runs_in_this_thread());
  device.await_handled(7);
  while (!device.order().ends_with('.')) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(device.order(), "ssss.s.l.s.");
  for (uint64_t handled = device.handled(); handled < 10;) {
    device.request(kShort);
    device.await_handled(++handled);
    while (!device.order().ends_with('.')) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(device.order(), "ssss.s.l.s.s.s.s.") << "in each pause";
}

// A process that may have this many threads and handles ten requests with three: exits with 0 if it did.
void with_threads(rlim_t most) {
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  constexpr uid_t kNobodyElse = 1'234'567'890;  // the limit does not bind root, and counts all threads of a user
  if (setrlimit(RLIMIT_NPROC, &limit) != 0 || (geteuid() == 0 && setresuid(kNobodyElse, kNobodyElse, kNobodyElse) != 0)) std::_Exit(2);
  constexpr uint64_t kRequests = 10;
  SocketDevice device;
  for (uint64_t i = 0; i < kRequests; ++i) device.request(kLong);
  device.disconnect();
  RequestLoop loop(device, {.threads = 3});
  std::_Exit(loop.run() == 0 && device.handled() == kRequests ? 0 : 1);
}

TEST(RequestLoopThreads, ItGoesOnWithThoseThatThereAre) { EXPECT_EXIT(with_threads(2), testing::ExitedWithCode(0), ""); }
TEST(RequestLoopThreads, ItGoesOnInTheCallingThread) { EXPECT_EXIT(with_threads(1), testing::ExitedWithCode(0), ""); }

INSTANTIATE_TEST_SUITE_P(BusyPoll, RequestLoopTest,
                         testing::Values(How{"off", 0ns, false}, How{"on", 50us, false}, How{"OneProcessor", 0ns, true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace request_loop_test
}  // namespace kvcachefs
