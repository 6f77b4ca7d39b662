#include "store/store_threads.h"

#include <chrono>
#include <thread>

namespace kvcachefs {

Status StoreThreads::start() {
  run_ = true;
  Status started = start_each();
  if (!started) stop();
  return started;
}

Status StoreThreads::start_each() {
  KVC_TRY(rooms_.committer_->start());
  KVC_TRY(rooms_.bulk_->start());
  KVC_TRY(rooms_.urgent_->start());
  KVC_TRY(rooms_.keeper_->start());
  if (rooms_.peers_) KVC_TRY(rooms_.peers_->start());
  KVC_TRY(rooms_.resumer_.start());
  KVC_TRY(rooms_.opener_.start());
  KVC_TRY(rooms_.read_ahead_->start());
  KVC_TRY(rooms_.page_warmer_->start());
  KVC_TRY(rooms_.file_mover_->start());
  KVC_TRY(rooms_.scrubber_->start());
  return {};
}

void StoreThreads::stop() {
  stopping_ = true;
  rooms_.keeper_->ask_to_stop();
  rooms_.drainer_->stop();
  rooms_.eviction_->stop();
  rooms_.scrubber_->stop();
  rooms_.cache_->stop();
  rooms_.space_waiters_.stop();
  rooms_.record_waiters_->stop();
  rooms_.bulk_->ask_to_stop();
  rooms_.urgent_->ask_to_stop();
  if (rooms_.peers_) rooms_.peers_->stop();
  rooms_.opener_.stop();  // from now on a caller does such work itself
  rooms_.read_ahead_->stop();
  rooms_.file_mover_->stop();
  rooms_.page_warmer_->stop();
  rooms_.resumer_.stop();
  rooms_.bulk_->stop();
  rooms_.urgent_->stop();
  rooms_.keeper_->stop();
  run_ = false;
  // The committer last: the others may still wait for it.
  rooms_.committer_->stop();
  rooms_.volume_->drain();
  rooms_.read_ahead_->finish();
  finish_handed_on_work();
  rooms_.read_ahead_->kernel().give_up();
  rooms_.record_waiters_->resume();
  rooms_.resumer_.give_answers();
  answer_waiting();
  answer_unfinished();
  rooms_.resumer_.give_answers();
}

// Does the work that was handed to the keeper and the opener when their threads were about to end: bytes that did not match are
// read again before their readers are answered.
void StoreThreads::finish_handed_on_work() {
  while (true) {
    const bool opened = rooms_.opener_.finish(), worked = rooms_.keeper_work_.run();
    if (!opened && !worked) return;
    rooms_.volume_->drain();
  }
}

// Answers calls that wait for a seal or for room when the threads are gone: the session that their answers go to ends next.
void StoreThreads::answer_unfinished() {
  constexpr int kMostRounds = 1000;
  for (int round = 0; round < kMostRounds && (rooms_.urgent_->step() || rooms_.committer_->step()); ++round) rooms_.committer_->step();
  rooms_.space_waiters_.answer_all();  // no thread makes room any more
  rooms_.volume_->drain();
  answer_waiting();  // a call that got room may have asked for memory next
  finish_raw_turns();
}

void StoreThreads::finish_raw_turns() {
  constexpr int kMostRounds = 100'000;
  for (int round = 0; round < kMostRounds && rooms_.writes_->raw_waiting() + rooms_.reads_->raw_waiting() > 0; ++round) {
    rooms_.volume_->drain();
    rooms_.resumer_.give_answers();
  }
  rooms_.volume_->drain();
}

// Gives memory to the requests that wait for it: no other caller takes any now. Their reads have arrived, and bytes that did not match were
// read again, before anything is taken down.
void StoreThreads::answer_waiting() {
  constexpr int kMostPauses = 1000;  // by then the memory that they need is held for ever
  for (int pauses = 0;;) {
    finish_handed_on_work();
    if (rooms_.resumer_.waiters().nobody_waits() || pauses == kMostPauses) return;
    if (!rooms_.resumer_.resume()) {
      ++pauses;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rooms_.volume_->drain();
  }
}

bool StoreThreads::pump() {
  bool any = rooms_.resumer_.resume();
  any |= rooms_.bulk_->step(false);
  any |= rooms_.urgent_->step();
  any |= rooms_.committer_->step();
  any |= rooms_.keeper_->step(false);
  if (rooms_.peers_ && !stopping_) rooms_.peers_->step();
  if (!stopping_) {
    any |= rooms_.read_ahead_->step();
    any |= rooms_.file_mover_->step();
    any |= rooms_.scrubber_->look_at_suspected();
  }
  return any;
}

}  // namespace kvcachefs
