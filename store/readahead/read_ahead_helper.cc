// Reading ahead in the pauses of a thread that polls for requests. On a machine with few processors the threads that read ahead
// compete with that thread and the clients for a processor, and each context switch costs as much as a piece of their work. So
// while a thread helps they sleep, and it does the pieces between two requests.
//
// 64 KiB chunks, cold, one reader, two processors: every 33rd chunk and the next three took 150 to 350 us instead of 30.
#include <mutex>
#include <utility>

#include "store/readahead/arrivals.h"
#include "store/readahead/read_ahead.h"

namespace kvcachefs {

namespace {
constexpr size_t kMostArrived = 4;  // reads of up to 1 MiB; with more waiting, the helper does not keep up
}  // namespace

bool ReadAhead::help() {
  if (!helper_there_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    helped_ = true;
    helper_there_ = true;
    helper_due_ = true;
  }
  const bool deadline = parts_.clock.monotonic_ns() >= helper_deadline_ns_.load(std::memory_order_relaxed);
  if (!deadline && !helper_due_.load(std::memory_order_relaxed)) return false;
  helper_due_ = false;  // before it looks for work
  std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn) return helper_due_ = true, false;  // the prefetcher has the turn
  const bool any = take_in_arrived() == Piece::kDone || help_on(deadline);
  turn.unlock();
  if (!any) return false;
  helper_due_ = true;
  if (!helper_there_) wake();  // another thread called leave_off() meanwhile, which holds for all
  return true;
}

// Caller holds turn_.
bool ReadAhead::help_on(bool deadline) {
  bool kicked = false;
  {
    std::lock_guard lock(mutex_);
    if (thread_works_ || for_thread_) return false;  // the prefetcher sets helper_due_ when it is done
    kicked = kicked_;
  }
  if (kicked || deadline) start_round();
  if (!kicked && !deadline && !helper_goes_on_) return false;
  helper_goes_on_ = piece(By::kHelper) == Piece::kDone;
  helper_deadline_ns_ = helper_goes_on_ ? INT64_MAX : parts_.accesses.deadline().value_or(INT64_MAX);
  return helper_goes_on_;
}

void ReadAhead::leave_off() {
  if (!helper_there_.load(std::memory_order_relaxed)) return;
  bool left = false;
  {
    std::unique_lock turn(turn_, std::try_to_lock);  // if it fails, the thread that has the turn goes on, or wakes the prefetcher
    std::lock_guard lock(mutex_);
    if (turn && std::exchange(helper_goes_on_, false)) kicked_ = true;
    if (helper_deadline_ns_.exchange(INT64_MAX) != INT64_MAX) kicked_ = true;  // so that the prefetcher waits for that deadline
    helped_ = false;
    helper_there_ = false;
    left = kicked_ || !arrived_.empty();
  }
  if (left) ready_.notify_one();
}

// Runs on a thread of the volume.
void ReadAhead::arrived(std::unique_ptr<ArrivedRead> read) {
  if (leave_to_helper(read)) return;
  Arrivals together(parts_.accesses, read->arrived_ns);  // collects all bodies of the read
  while (!read->all_taken_in()) parts_.loader.take_in_next(*read);
}

// False: the caller takes the read in now.
bool ReadAhead::leave_to_helper(std::unique_ptr<ArrivedRead>& read) {
  if (!helper_there_.load(std::memory_order_relaxed) || !read->result || read->jobs.front()->urgent) return false;
  for (const auto& job : read->jobs)
    if (job->padded_bytes() > kHelpedBytes) return false;
  {
    std::lock_guard lock(mutex_);
    if (!helped_ || arrived_.size() >= kMostArrived) return false;
    arrived_.push_back(std::move(read));
  }
  helper_due_ = true;
  return true;
}

// Caller holds turn_, so that the first read stays the first.
ReadAhead::Piece ReadAhead::take_in_arrived() {
  std::unique_ptr<ArrivedRead> read;
  {
    std::lock_guard lock(mutex_);
    if (arrived_.empty()) return Piece::kNothing;
    read = std::move(arrived_.front());
    arrived_.pop_front();
  }
  {
    Arrivals together(parts_.accesses, read->arrived_ns);
    parts_.loader.take_in_next(*read);
  }
  if (read->all_taken_in()) return Piece::kDone;
  std::lock_guard lock(mutex_);
  arrived_.push_front(std::move(read));
  return Piece::kDone;
}

}  // namespace kvcachefs
