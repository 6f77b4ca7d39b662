// The planner's runs: when one begins and ends, what it still expects, when it counts as stopped.
#include <algorithm>

#include "store/chain/planner.h"
#include "store/chain/planner_limits.h"

namespace kvcachefs {

namespace {

// When a run counts as stopped. An announced run waits for the engine's scheduler; a run whose threads all read elsewhere waits
// only for the next thread of a pool.
constexpr int64_t kStoppedFirstNs = 2'000'000'000;
constexpr int64_t kStoppedMaxNs = 30'000'000'000;
constexpr int64_t kAnnouncedNs = 5'000'000'000;
constexpr int64_t kSiblingNs = 500'000'000;  // ranks read a prefix at the same time or not at all
constexpr int64_t kOrphanNs = 20'000'000;

}  // namespace

ReadRun& PrefetchPlanner::new_run(LoadReason reason, uint64_t stem, int64_t now) {
  if (free_slots_.empty()) {
    const auto idlest = std::min_element(live_slots_.begin(), live_slots_.end(), [&](uint32_t a, uint32_t b) {
      return runs_[a].last_activity < runs_[b].last_activity;
    });
    finish(runs_[*idlest]);
  }
  ReadRun* chosen = &runs_[free_slots_.back()];
  live_slots_.push_back(free_slots_.back());
  free_slots_.pop_back();
  *chosen = ReadRun{};
  chosen->generation = next_generation_++;
  if (next_generation_ == 0) next_generation_ = 1;
  chosen->reason = reason;
  chosen->stem = stem;
  chosen->last_activity = now;
  chosen->allowed_bytes = trust_.trusts_run(stem, reason) ? first_window(*chosen) : 0;
  due_at(now + kStoppedMinNs);
  return *chosen;
}

void PrefetchPlanner::release_claim(ObjectId id) {
  if (auto found = notes_.find(id); found != notes_.end() && found->second.claims > 0) --found->second.claims;
}

// The run no longer expects these. An object that is planned, not loaded and not expected by another run is cancelled.
void PrefetchPlanner::give_up(std::vector<ObjectId>& dropped) {
  for (ObjectId id : dropped) {
    release_claim(id);
    if (accounting_.state(id) == PrefetchState::kPlanned && !about_to_be_used(id)) cancels_.push_back(id);
  }
  dropped.clear();
}

void PrefetchPlanner::drop_expected(ReadRun& run) {
  scratch_.clear();
  run.drop_all(scratch_);
  give_up(scratch_);
}

// The reader left the followed chain, or stopped.
void PrefetchPlanner::judge(ReadRun& run) {
  if (run.chain_end.valid()) judge_chain_end(run, false);
  const uint64_t planned = run.planned_objects - run.planned_before;
  if (planned == 0 || run.ends_here) return;
  trust_.objects_judged(run.stem, planned, run.unread_planned());
  run.planned_before = run.planned_objects;
}

void PrefetchPlanner::judge_chain_end(ReadRun& run, bool reached) {
  trust_.chain_end_decided(run.stem, reached);
  run.chain_end = ObjectId{};
}

void PrefetchPlanner::finish(ReadRun& run) {
  // A run that was gated, but would have been right, counts too.
  if (run.planned_objects > 0 || run.arrivals > 1) trust_.run_ended(run.stem, run.reason, run.arrivals > 0);
  judge(run);
  drop_expected(run);
  run.generation = 0;
  const auto slot = static_cast<uint32_t>(&run - runs_.data());
  std::erase(live_slots_, slot);
  free_slots_.push_back(slot);
}

void PrefetchPlanner::leave_run(StreamState& stream, int64_t now) {
  ReadRun* run = live(stream.run);
  stream.run = RunRef{};
  if (run == nullptr) return;
  if (run->streams > 0) --run->streams;
  if (run->streams > 0) return;
  run->orphaned_at = now;
  due_at(expiry(*run) + 1);
}

void PrefetchPlanner::move_stream(StreamState& stream, ReadRun& run, int64_t now) {
  const RunRef ref = ref_of(run);
  if (!(stream.run == ref)) {
    leave_run(stream, now);
    stream.run = ref;
    ++run.streams;
  }
  run.orphaned_at = -1;
}

int64_t PrefetchPlanner::expiry(const ReadRun& run) const {
  if (run.orphaned_at >= 0) return run.orphaned_at + std::max(kOrphanNs, 2 * run.interval_ns);
  if (run.arrivals == 0 && run.streams == 0) {
    return run.last_activity + (run.reason == LoadReason::kSibling ? kSiblingNs : kAnnouncedNs);
  }
  if (run.interval_ns < 0) return run.last_activity + kStoppedFirstNs;
  return run.last_activity + std::clamp(8 * run.interval_ns, kStoppedMinNs, kStoppedMaxNs);
}

bool PrefetchPlanner::expired(const ReadRun& run, int64_t now) const {
  if (now <= expiry(run)) return false;
  return now > run.last_activity + kStoppedMaxNs || !waits_for_volume(run);
}

// True if it has loads in flight and no load at all has ended since its reader last came: the reader may be waiting, too.
bool PrefetchPlanner::waits_for_volume(const ReadRun& run) const {
  if (run.streams == 0 || run.orphaned_at >= 0 || load_ended_at_ > run.last_activity) return false;
  return run.any_unread_planned([&](ObjectId id) { return accounting_.state(id) == PrefetchState::kPlanned; });
}

// Readers that waited while the volume delivered nothing for a while get their full time again from now on.
void PrefetchPlanner::note_load_end(int64_t now) {
  for (uint32_t slot : live_slots_) {
    ReadRun& run = runs_[slot];
    if (now > expiry(run) && !expired(run, now)) run.last_activity = now;
  }
  load_ended_at_ = std::max(load_ended_at_, now);
}

void PrefetchPlanner::due_at(int64_t when) { next_due_ = std::min(next_due_, when); }

std::optional<int64_t> PrefetchPlanner::deadline() const {
  if (live_slots_.empty()) return std::nullopt;
  return next_due_;
}

bool PrefetchPlanner::about_to_be_used(ObjectId id) const {
  const Note* n = find_note(id);
  return n != nullptr && n->claims > 0;
}

}  // namespace kvcachefs
