// Calls that found no space. They wait, without holding a thread or a lock, for the next reclaim round, which gives back all dead space that
// is not in use, and then try again. If the last round gave nothing back and nothing died since, they are
// refused at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/space/space.h"

namespace kvcachefs {

// Thread-safe. One thread, the keeper's, begins and ends rounds.
class SpaceWaiters {
 public:
  using Retry = std::move_only_function<void()>;
  // `refused` counts the calls of with_room() that end without space. `ask_for_round` is called, with no lock of this class held,
  // when a call begins to wait; it must make sure that begin_round() is called soon.
  SpaceWaiters(const Space& space, std::atomic<uint64_t>& refused, Clock& clock, std::function<void()> ask_for_round)
      : space_(space), refused_(refused), clock_(clock), ask_for_round_(std::move(ask_for_round)) {}
  // `may_make_more` (called with no lock of this class, takes leaf locks only) tells whether a round may free more than dead space: then calls wait even if
  // the last round gave nothing back, and four times as often. Set before use.
  void set_source(std::function<bool()> may_make_more) { may_make_more_ = std::move(may_make_more); }

  // State of one call, which keeps it until it is answered: how often it waited, and since when.
  struct Turn {
    int rounds = 0;
    int64_t since_ns = 0;
  };
  // Runs `retry` after a round that begins from now on, on the thread that ends it. Returns false, and drops `retry`, if the volume is
  // full. Others may take what comes back, so a call gives up after 16 rounds (64 while eviction may free more), or after three that take 20 s
  // together. Does not block; no leaf lock may be held.
  bool wait(Turn& turn, Retry retry);
  // Asks for a round, if it may give anything back, for a call that is refused now but may be repeated.
  void ask();
  // Runs `attempt` until it returns anything but kNoSpace, or wait() refuses; then calls `done` with the last result. Both may
  // run on the calling thread or on the keeper's. No lock may be held.
  void with_room(std::move_only_function<Status()> attempt, std::move_only_function<void(Status)> done);
  // Number of calls waiting now.
  uint64_t count() const { return count_.load(); }
  // Totals of all calls that waited so far: how many, how long together, and the longest.
  struct Waited {
    uint64_t calls = 0;
    int64_t total_ns = 0, longest_ns = 0;
  };
  Waited waited() const;

  struct Round {
    uint64_t number = 0;
    uint64_t hopes = 0;  // Space::hopes() when it began
    uint64_t pressure = 0;  // the most rounds that some call has waited through without finding space
  };
  // nullopt: no call waits for a round.
  std::optional<Round> begin_round();
  // Retries the calls that waited when the round began, on this thread. `gave_back`: the round freed anything. `goes_on`: the
  // next round will give back more, so this one is not counted against calls that found no space.
  void end_round(const Round& round, bool gave_back, bool goes_on = false);

  // From now on wait() refuses.
  void stop();
  // Call after stop() and the last round: waiting calls try once more, which fails where there is no space.
  void answer_all();

 private:
  struct Waiting {
    uint64_t round = 0;  // it tries again after this round
    int64_t began_ns = 0, since_ns = 0;  // of this wait, and of the first wait of the call
    Retry retry;
  };

  const Space& space_;
  std::atomic<uint64_t>& refused_;
  Clock& clock_;
  const std::function<void()> ask_for_round_;
  std::function<bool()> may_make_more_;
  mutable LeafMutex mutex_;  // a leaf; guards all below except count_
  std::deque<Waiting> waiting_;  // by round, ascending
  Waited waited_;
  uint64_t round_ = 0, round_wanted_ = 0;           // the last begun; the last asked for
  uint64_t pressure_ = 0;                           // for the next round
  bool goes_on_ = false;                            // the last round had not given back everything
  uint64_t fruitless_at_ = UINT64_MAX;              // Space::hopes() at the beginning of the last fruitless round
  bool stopped_ = false;
  std::atomic<uint64_t> count_{0};
};

}  // namespace kvcachefs
