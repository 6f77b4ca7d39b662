// Calls that change names or attributes and find too much of that unwritten, or no room for it: they wait, or are refused.
#include <utility>

#include "store/store_impl.h"

namespace kvcachefs {

namespace {
// What a byte of record comes to on the volume at most: in the journal, in the next checkpoint, and in half-filled pages.
constexpr uint64_t kTimes = 4;
constexpr uint64_t kMarginBytes = 32 * kKiB;  // the rows of the index that change with it
uint64_t room_for(uint64_t bytes) { return kTimes * bytes + kMarginBytes; }
}  // namespace

bool StoreImpl::has_room_for_records(uint64_t bytes) {
  return !record_space_->crowded() && space_.room_bytes() >= room_for(bytes);
}

// What cannot be written does not become less while a call waits.
std::optional<Error> StoreImpl::records_refused(bool gives_back) {
  if (gives_back && !record_space_->overcrowded()) return std::nullopt;
  if (auto error = health_.error(Health::Of::kJournal)) return error;
  return health_.error(Health::Of::kUpkeep);
}

void StoreImpl::await_room_for_records(uint64_t bytes, bool gives_back, StatusCompletion then) {
  if (stopping_) return then({});
  const bool waits = gives_back ? record_space_->overcrowded() || (record_space_->crowded() && !records_refused(false))
                                : record_space_->crowded();
  if (waits) {
    if (auto refused = records_refused(gives_back)) return then(std::unexpected(std::move(*refused)));
    record_space_->wait([this, bytes, gives_back, then = std::move(then)]() mutable {
      await_room_for_records(bytes, gives_back, std::move(then));
    });
    waiting_records_.fetch_add(1);
    dirty_.wake(true);
    keeper_wakeup_.wake();
    return;
  }
  if (gives_back || space_.room_bytes() >= room_for(bytes)) return then({});
  space_waiters_.with_room(
      [this, bytes]() -> Status {
        if (space_.room_bytes() >= room_for(bytes)) return {};
        return fail(Code::kNoSpace, "the capacity of " + format_size(space_.limit_bytes()) + " is used up");
      },
      std::move(then));
}

void StoreImpl::resume_records() {
  if (waiting_records_.load(std::memory_order_relaxed) == 0) return;
  for (auto& retry : record_space_->take_waiting(stopping_)) {
    waiting_records_.fetch_sub(1);
    resumer_.answer_later(std::move(retry));
  }
}

bool StoreImpl::records_want_upkeep() {
  return (record_space_->wants_checkpoint() || record_space_->wants_index_commit()) &&
         upkeep_backoff_.may_try(clock_.monotonic_ns());
}

}  // namespace kvcachefs
