#include "store/commit/record_waiters.h"

#include <functional>
#include <utility>
#include <vector>

#include "store/base/units.h"
#include "store/base/volume_error.h"

namespace kvcachefs {

namespace {
// How many bytes of the volume a byte of a record takes at most: in the journal, in the next checkpoint, and in half-filled pages.
constexpr uint64_t kTimes = 4;
constexpr uint64_t kMarginBytes = 32 * kKiB;  // for the index rows that change with it
uint64_t room_for(uint64_t bytes) { return kTimes * bytes + kMarginBytes; }
}  // namespace

bool RecordWaiters::has_room(uint64_t bytes, Growth growth) const {
  return !parts_.records.is_to_be_measured(growth) && !parts_.records.crowded() && parts_.space.room_bytes() >= room_for(bytes);
}

// Records that cannot be written do not become fewer while a call waits.
std::optional<Error> RecordWaiters::refused(bool gives_back) const {
  if (gives_back && !parts_.records.overcrowded()) return std::nullopt;
  for (const Health::Of of : {Health::Of::kVolume, Health::Of::kJournal, Health::Of::kUpkeep})
    if (auto error = parts_.health.error(of)) return error_of_volume(*std::move(error));
  return std::nullopt;
}

void RecordWaiters::await_room(uint64_t bytes, Growth growth, StatusCompletion then) {
  if (!parts_.records.is_to_be_measured(growth)) return await_written(bytes, growth == Growth::kNone, std::move(then));
  await_measured(parts_.records.want_measured(), bytes, growth, std::move(then));
  parts_.keeper.wake();
}

// Not for an index that cannot be written: the change is then refused as the last figures tell.
void RecordWaiters::await_measured(uint64_t measurings, uint64_t bytes, Growth growth, StatusCompletion then) {
  if (stopping_ || parts_.records.measurings() >= measurings || parts_.health.error(Health::Of::kUpkeep))
    return await_written(bytes, growth == Growth::kNone, std::move(then));
  waiting_.fetch_add(1);
  parts_.records.retry_soon([this, measurings, bytes, growth, then = std::move(then)]() mutable { await_measured(measurings, bytes, growth, std::move(then)); });
}

void RecordWaiters::await_written(uint64_t bytes, bool gives_back, StatusCompletion then) {
  if (stopping_) return then({});
  const bool waits = gives_back ? parts_.records.overcrowded() || (parts_.records.crowded() && !refused(false)) : parts_.records.crowded();
  if (waits) {
    if (auto error = refused(gives_back)) return then(std::unexpected(std::move(*error)));
    parts_.records.wait([this, bytes, gives_back, then = std::move(then)]() mutable { await_written(bytes, gives_back, std::move(then)); });
    waiting_.fetch_add(1);
    parts_.dirty.wake(true);
    parts_.keeper.wake();
    return;
  }
  if (gives_back || parts_.space.room_bytes() >= room_for(bytes)) return then({});
  parts_.space_waiters.with_room(
      [this, bytes]() -> Status {
        if (parts_.space.room_bytes() >= room_for(bytes)) return {};
        parts_.space.note_lacking(room_for(bytes));
        return fail(Code::kNoSpace, "the capacity of " + format_size(parts_.space.limit_bytes()) + " is used up");
      },
      std::move(then));
}

void RecordWaiters::await_room_for_xattr(uint64_t bytes, StatusCompletion then) {
  constexpr int64_t kMostNs = 5'000'000'000;
  if (parts_.records.has_room_for_xattrs(bytes)) return await_room(bytes, Growth::kXattrs, std::move(then));
  await_xattrs(bytes, parts_.clock.monotonic_ns() + kMostNs, std::move(then));
  parts_.dirty.wake(true);
  parts_.keeper.wake();
}

void RecordWaiters::await_xattrs(uint64_t bytes, int64_t until_ns, StatusCompletion then) {
  if (stopping_ || parts_.records.has_room_for_xattrs(bytes) || parts_.clock.monotonic_ns() >= until_ns)
    return await_room(bytes, Growth::kXattrs, std::move(then));
  waiting_.fetch_add(1);
  parts_.records.retry_soon([this, bytes, until_ns, then = std::move(then)]() mutable { await_xattrs(bytes, until_ns, std::move(then)); });
}

void RecordWaiters::resume() {
  if (waiting_.load(std::memory_order_relaxed) == 0) return;
  const auto answer = [this](std::vector<std::move_only_function<void()>> retries) {
    for (auto& retry : retries) {
      waiting_.fetch_sub(1);
      parts_.resumer.answer_later(std::move(retry));
    }
  };
  answer(parts_.records.take_waiting(stopping_));
  answer(parts_.records.take_retries());
}

bool RecordWaiters::want_upkeep() const {
  const bool due = parts_.records.wants_checkpoint() || parts_.records.wants_index_commit() || parts_.records.is_wanted_measured();
  return due && parts_.upkeep.may_try(parts_.clock.monotonic_ns());
}

}  // namespace kvcachefs
