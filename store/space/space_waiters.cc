#include "store/space/space_waiters.h"

#include <algorithm>
#include <memory>
#include <mutex>

namespace kvcachefs {

bool SpaceWaiters::wait(Turn& turn, Retry retry) {
  constexpr int kMaxRounds = 16;  // others may take what comes back
  constexpr int kSlowRounds = 3;  // of slow rounds fewer: perhaps the volume takes no records
  constexpr int64_t kLongNs = 20'000'000'000;
  const int64_t now_ns = clock_.monotonic_ns();
  const bool more = may_make_more_ && may_make_more_();
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || turn.rounds >= (more ? 4 * kMaxRounds : kMaxRounds) || (space_.hopes() == fruitless_at_ && !more)) return false;
    if (turn.rounds >= kSlowRounds && now_ns - turn.since_ns >= kLongNs) return false;
    if (turn.since_ns == 0) {
      turn.since_ns = now_ns;
      ++waited_.calls;
    }
    if (!goes_on_) ++turn.rounds;
    pressure_ = std::max(pressure_, static_cast<uint64_t>(std::max(turn.rounds, 1) - 1));
    round_wanted_ = round_ + 1;  // one that begins now
    waiting_.push_back({round_wanted_, now_ns, turn.since_ns, std::move(retry)});
    count_.fetch_add(1);
  }
  ask_for_round_();
  return true;
}

void SpaceWaiters::ask() {
  const bool more = may_make_more_ && may_make_more_();
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || (space_.hopes() == fruitless_at_ && !more)) return;
    round_wanted_ = round_ + 1;
  }
  ask_for_round_();
}

SpaceWaiters::Waited SpaceWaiters::waited() const {
  std::lock_guard lock(mutex_);
  return waited_;
}

void SpaceWaiters::with_room(std::move_only_function<Status()> attempt, std::move_only_function<void(Status)> done) {
  struct Pending {
    std::move_only_function<Status()> attempt;
    std::move_only_function<void(Status)> done;
    Turn turn;
  };
  auto pending = std::make_shared<Pending>(std::move(attempt), std::move(done));
  auto go_on = [this, pending](auto self) -> void {
    Status status = pending->attempt();
    const bool full = !status && status.error().code == Code::kNoSpace;
    if (full && wait(pending->turn, [self] { self(self); })) return;
    if (full) refused_.fetch_add(1, std::memory_order_relaxed);
    pending->done(std::move(status));
  };
  go_on(go_on);
}

std::optional<SpaceWaiters::Round> SpaceWaiters::begin_round() {
  std::lock_guard lock(mutex_);
  if (round_wanted_ <= round_) return std::nullopt;
  return Round{++round_, space_.hopes(), std::exchange(pressure_, 0)};
}

void SpaceWaiters::end_round(const Round& round, bool gave_back, bool goes_on) {
  std::vector<Retry> retries;
  const int64_t now_ns = clock_.monotonic_ns();
  {
    std::lock_guard lock(mutex_);
    if (!gave_back) fruitless_at_ = round.hopes;
    goes_on_ = goes_on;
    while (!waiting_.empty() && waiting_.front().round <= round.number) {
      Waiting& first = waiting_.front();
      waited_.total_ns += now_ns - first.began_ns;
      waited_.longest_ns = std::max(waited_.longest_ns, now_ns - first.since_ns);
      retries.push_back(std::move(first.retry));
      waiting_.pop_front();
    }
  }
  for (Retry& retry : retries) {
    count_.fetch_sub(1);
    retry();
  }
}

void SpaceWaiters::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
}

void SpaceWaiters::answer_all() {
  std::deque<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
  }
  count_.fetch_sub(waiting.size());
  for (Waiting& each : waiting) each.retry();
}

}  // namespace kvcachefs
