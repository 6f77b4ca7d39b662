#include "store/upkeep/index_rebuild.h"

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/index/replay_filter.h"

namespace kvcachefs {

Status IndexRebuild::repair(Index& index) {
  std::lock_guard turn(turn_);
  if (!index.damaged()) return {};
  constexpr int64_t kPauseNs = 10'000'000'000;  // each attempt reads all journals
  const int64_t now = clock_.monotonic_ns();
  if (!failure_ && now < next_try_ns_) return failure_;
  if (failure_) log::warn("the index is damaged: building it anew from checkpoint and journals");
  const std::string told = failure_ ? std::string() : failure_.error().message;
  failure_ = build(index);
  next_try_ns_ = clock_.monotonic_ns() + kPauseNs;
  if (!failure_) {
    if (failure_.error().message != told) log::error("the index is damaged and could not be built anew: {}", failure_.error().message);
    return failure_;
  }
  rebuilds_.fetch_add(1, std::memory_order_relaxed);
  log::info("the index was built anew in {} ms", (clock_.monotonic_ns() - now) / 1'000'000);
  return {};
}

Status IndexRebuild::build(Index& index) {
  if (!believed_.load(std::memory_order_relaxed))
    return fail(Code::kInvalid, "what the start left out of the journals is not in a checkpoint yet; the next start builds the index");
  constexpr int kAttempts = 3;  // a checkpoint may finish meanwhile, and the journals before it go
  for (int attempt = 1;; ++attempt) {
    KVC_ASSIGN(auto fresh, index.begin_rebuild());
    Status filled = fill(*fresh, index.position());
    if (filled) return index.finish_rebuild(std::move(fresh));
    if (attempt == kAttempts) return filled;
  }
}

Status IndexRebuild::fill(Index& fresh, JournalPosition until) {
  if (until == JournalPosition{}) return {};
  ReplayFilter filter(fresh, /*complete=*/true, [](ReplayFilter::Told, const std::string&) {});  // the start logged them
  std::vector<std::string> problems;
  KVC_ASSIGN(const auto checkpoint, find_checkpoint(volume_, identity_, problems));
  if (checkpoint) {
    if (until < checkpoint->header.covers) return fail(Code::kNotFound, "the journals before the newest checkpoint are gone");
    const CheckpointHeader& header = checkpoint->header;
    KVC_TRY(fresh.begin_load());
    KVC_TRY(read_checkpoint(volume_, identity_, *checkpoint, [&](Record&& record) {
      return filter.believes(record, header.covers.epoch) ? fresh.load(std::move(record)) : Status();
    }, problems));
    KVC_TRY(fresh.finish_load(header.covers, ReplayFilter::believed(header.stamp)));
  }
  if (fresh.position() == until) return {};
  constexpr uint64_t kMostRows = 100'000;  // held in RAM
  bool there = false;
  const auto take = [&](const Batch& believed, JournalPosition after) -> Status {
    KVC_TRY(fresh.apply(believed, after));
    return {};
  };
  const auto apply = [&](const Batch& batch, JournalPosition after, bool) -> Status {
    KVC_TRY(filter.apply(batch, after, [](const PutRecord&) { return false; }, take));
    there = after == until;
    if (there) return fail(Code::kCanceled, "all that was wanted is read");
    return fresh.overlay_rows() > kMostRows ? fresh.commit() : Status{};
  };
  const auto replayed = replay_journals(volume_, identity_, fresh.position(), apply);
  // The tail of an earlier epoch was put right when this one began; the tail of the epoch in progress is not to be.
  if (there) return until.epoch < identity_.epoch ? filter.finish(take) : Status{};
  if (!replayed) return std::unexpected(replayed.error());
  return fail(Code::kCorrupt, "the journals end before the index did");
}

}  // namespace kvcachefs
