// The threads of the store: what each waits for and which step it takes then; and how they end, with everybody answered.
#include <algorithm>
#include <thread>
#include <utility>

#include "store/store_impl.h"

namespace kvcachefs {

void StoreImpl::start_threads() {
  has_threads_ = true;
  committer_->start();
  bulk_->start();
  urgent_->start();
  keeper_->start();
  if (peers_) peers_->start();
  resumer_.start();
  opener_.start();
  read_ahead_->start();
  page_warmer_->start();
  file_mover_->start();
  scrubber_->start();
}

void StoreImpl::stop_threads() {
  stopping_ = true;
  keeper_->ask_to_stop();
  drainer_->stop();
  eviction_->stop();
  scrubber_->stop();
  cache_->stop();
  space_waiters_.stop();
  record_waiters_->stop();
  bulk_->ask_to_stop();
  urgent_->ask_to_stop();
  if (peers_) peers_->stop();
  opener_.stop();  // from now on such work is done where it comes up
  read_ahead_->stop();
  file_mover_->stop();
  page_warmer_->stop();
  resumer_.stop();
  bulk_->stop();
  urgent_->stop();
  keeper_->stop();
  has_threads_ = false;
  // The committer last: the others may still wait for it.
  committer_->stop();
  volume_->drain();
  read_ahead_->finish();
  finish_handed_on_work();
  read_ahead_->kernel().give_up();
  record_waiters_->resume();
  resumer_.give_answers();
  answer_waiting();
  answer_unfinished();
  resumer_.give_answers();
}

// Work for the keeper and the opener that came up when their threads were about to end: bytes that did not match are looked at
// again before their readers are answered.
void StoreImpl::finish_handed_on_work() {
  while (true) {
    const bool opened = opener_.finish(), worked = keeper_work_.run();
    if (!opened && !worked) return;
    volume_->drain();
  }
}

// Who waits for a seal or for room when the threads are gone: the session that their answers go to ends next.
void StoreImpl::answer_unfinished() {
  constexpr int kMostRounds = 1000;
  for (int round = 0; round < kMostRounds && (urgent_->step() || committer_->step()); ++round) committer_->step();
  space_waiters_.answer_all();  // nobody makes room any more
  volume_->drain();
  answer_waiting();  // who got room may have wanted memory then
  finish_raw_turns();
}

void StoreImpl::finish_raw_turns() {
  constexpr int kMostRounds = 100'000;
  for (int round = 0; round < kMostRounds && writes_->raw_waiting() + reads_->raw_waiting() > 0; ++round) {
    volume_->drain();
    resumer_.give_answers();
  }
  volume_->drain();
}

// Requests that wait for memory get it now, for nobody else takes any. What they read has come, and was looked at again where it did not match,
// before anything is taken down.
void StoreImpl::answer_waiting() {
  constexpr int kMostPauses = 1000;  // then somebody holds what they need for ever
  for (int pauses = 0;;) {
    finish_handed_on_work();
    if (resumer_.waiters().nobody_waits() || pauses == kMostPauses) return;
    if (!resumer_.resume()) {
      ++pauses;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    volume_->drain();
  }
}

bool StoreImpl::pump() {
  bool any = resumer_.resume();
  any |= bulk_->step(false);
  any |= urgent_->step();
  any |= committer_->step();
  any |= keeper_->step(false);
  if (peers_ && !stopping_) peers_->step();
  if (!stopping_) {
    any |= read_ahead_->step();
    any |= file_mover_->step();
  }
  return any;
}

}  // namespace kvcachefs
