// Reading ahead in the pauses of a thread that polls for requests. On a machine with few processors the threads that read ahead
// run where that thread or a client would: it waits for them, or they for it, and each change of hands costs as much as a piece
// of their work. So while somebody helps they sleep, and the pieces are done between two requests.
//
// 64 KiB chunks, cold, one reader, two processors: every 33rd chunk and the next three took 150 to 350 us instead of 30.
#include <utility>

#include "store/store_impl.h"
#include "store/store_load.h"

namespace kvcachefs {

namespace {
constexpr size_t kMostArrived = 4;             // reads of up to 1 MiB: beyond, the helper does not keep up
constexpr uint64_t kTakenInBytes = 128 << 10;  // checking a larger body takes too long
}  // namespace

bool StoreImpl::help() {
  if (!helper_there_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(prefetch_mutex_);
    if (stopping_) return false;
    helped_ = true;
    helper_there_ = true;
    helper_due_ = true;
  }
  if (!helper_due_.exchange(false)) return false;
  std::unique_lock turn(prefetch_turn_, std::try_to_lock);
  if (!turn) return helper_due_ = true, false;  // the prefetcher is at it
  bool any = take_in_arrived() == AheadPiece::kDone, kicked = false, threads = false;
  if (!any) {
    {
      std::lock_guard lock(prefetch_mutex_);
      threads = thread_works_ || for_thread_;
      kicked = prefetch_kicked_;
    }
    if (!threads && kicked) start_round();
    if (!threads && (kicked || helper_goes_on_)) any = helper_goes_on_ = prefetch_piece(By::kHelper) == AheadPiece::kDone;
  }
  if (any) helper_due_ = true;
  return any;
}

void StoreImpl::leave_off() {
  if (!helper_there_.load(std::memory_order_relaxed)) return;
  bool left = false;
  {
    std::unique_lock turn(prefetch_turn_, std::try_to_lock);  // not had: the prefetcher is awake, and looks once more
    std::lock_guard lock(prefetch_mutex_);
    if (turn && std::exchange(helper_goes_on_, false)) prefetch_kicked_ = true;
    helped_ = false;
    helper_there_ = false;
    left = prefetch_kicked_ || !arrived_.empty();
  }
  if (left) prefetch_ready_.notify_one();
}

// On a thread of the volume. False: it is to be taken in now.
bool StoreImpl::leave_to_helper(std::unique_ptr<ArrivedRead>& read) {
  if (!helper_there_.load(std::memory_order_relaxed) || !read->result || read->jobs.front()->urgent) return false;
  for (const auto& job : read->jobs)
    if (job->padded_bytes() > kTakenInBytes) return false;
  {
    std::lock_guard lock(prefetch_mutex_);
    if (!helped_ || arrived_.size() >= kMostArrived) return false;
    arrived_.push_back(std::move(read));
  }
  helper_due_ = true;
  return true;
}

// prefetch_turn_ held: the read that is first stays the first.
StoreImpl::AheadPiece StoreImpl::take_in_arrived() {
  std::unique_ptr<ArrivedRead> read;
  {
    std::lock_guard lock(prefetch_mutex_);
    if (arrived_.empty()) return AheadPiece::kNothing;
    read = std::move(arrived_.front());
    arrived_.pop_front();
  }
  {
    Arrivals arrivals(*this, read->arrived_ns);
    take_in_next(*read);
  }
  if (read->next == read->jobs.size()) return AheadPiece::kDone;
  std::lock_guard lock(prefetch_mutex_);
  arrived_.push_front(std::move(read));
  return AheadPiece::kDone;
}

}  // namespace kvcachefs
