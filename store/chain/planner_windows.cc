// How far ahead a run is read: the size of its chunks, how many bytes may be ready or in flight, and the plans that follow from
// that.
#include <algorithm>
#include <utility>

#include "store/chain/planner.h"
#include "store/chain/planner_limits.h"

namespace kvcachefs {

namespace {

// Do not wait for probes that come later than this after the one before.
constexpr int64_t kProbeQuietNs = 2'000'000;
constexpr uint64_t kProbedReadBytes = uint64_t{1} << 20;
constexpr uint64_t kListedWindowBytes = uint64_t{32} << 20;
constexpr uint64_t kMostReaders = 8;
constexpr int kMostWidened = 3;
constexpr int64_t kWidenPauseNs = 20'000'000;  // until the last widening shows its effect
constexpr int64_t kNarrowAfterNs = 10'000'000'000;
constexpr size_t kMaxExpected = 16384;
constexpr uint32_t kGuessPriority = 1000;

}  // namespace

uint64_t PrefetchPlanner::chunk_estimate(const ReadRun& run) const {
  if (run.chunk_bytes != 0) return run.chunk_bytes;
  auto found = stem_chunk_bytes_.find(run.stem);
  return found == stem_chunk_bytes_.end() ? typical_chunk_bytes_ : found->second;
}

void PrefetchPlanner::note_size(uint64_t stem, uint64_t size_bytes) {
  if (size_bytes == 0) return;
  if (stem_chunk_bytes_.size() >= kMaxTables && !stem_chunk_bytes_.contains(stem)) stem_chunk_bytes_.clear();
  auto [found, inserted] = stem_chunk_bytes_.try_emplace(stem, size_bytes);
  if (!inserted) found->second = (7 * found->second + size_bytes + 7) / 8;
}

// An object larger than all that may be ready takes all of it: otherwise it would hold up those that follow for ever. Objects
// that are only opened take little: many are opened at a time, instead of waking the prefetcher for each.
uint64_t PrefetchPlanner::bookable(const ReadRun& run, uint64_t bytes) const {
  return std::min(run.share(bytes), most_bookable());
}

// At least two chunks, or a chunk larger than the window would never be read ahead; and one more than the threads that share the
// run, which would overtake it (as far as threads tell: a client may begin one for each chunk). The whole rest of a list that is
// known in full, if readers usually come for lists of this stem.
uint64_t PrefetchPlanner::first_window(const ReadRun& run) const {
  const uint64_t chunks = std::clamp<uint64_t>(run.streams, 1, kMostReaders) + 1;
  uint64_t wanted = std::max(options_.ahead_min_bytes, chunks * chunk_estimate(run));
  if (run.reason == LoadReason::kProbe && run.ends_here && run.listed && trust_.proven(run.stem, run.reason)) {
    const uint64_t share = options_.total_max_bytes / std::max<size_t>(live_slots_.size(), 1);
    wanted = std::max(wanted, std::min({run.ahead_bytes(), kListedWindowBytes, share}));
  }
  return std::min(wanted, options_.ahead_max_bytes);
}

// Readers of some stems leave chains early (prompts branch, and nothing announces how far one goes): the larger the unread share
// of their prefetched objects, the less is read ahead for them.
double PrefetchPlanner::caution(const ReadRun& run) const {
  if (run.ends_here) return 1.0;
  return std::clamp((trust_.used_share(run.stem) - 0.5) / 0.45, 1.0 / 64, 1.0);
}

// The estimator measures the volume at its best; waiting readers show how long loads really take beside writers, other readers
// and a busy processor.
void PrefetchPlanner::adapt_windows(bool reader_waits, int64_t now) {
  if (reader_waits && widened_ < kMostWidened && now - widened_at_ >= kWidenPauseNs) {
    ++widened_;
    widened_at_ = now;
  } else if (widened_ > 0 && now - widened_at_ >= kNarrowAfterNs) {
    --widened_;
    widened_at_ = now;
  }
}

uint64_t PrefetchPlanner::window_bytes(const ReadRun& run) const {
  if (run.allowed_bytes == 0 || run.orphaned_at >= 0) return 0;
  // Twice the bandwidth-delay product, and twice what the reader takes during one load.
  uint64_t wanted = std::max(first_window(run), 2 * volume_.bandwidth_delay_bytes());
  if (run.interval_ns > 0) {
    const double taken = static_cast<double>(chunk_estimate(run)) * static_cast<double>(volume_.mean_latency_ns()) /
                         static_cast<double>(run.interval_ns);
    wanted = std::max(wanted, static_cast<uint64_t>(2 * std::min(taken, 1e15)));
  }
  wanted <<= widened_;
  wanted = std::min({wanted, std::max(run.allowed_bytes, first_window(run)), options_.ahead_max_bytes});
  const auto cautious = static_cast<uint64_t>(caution(run) * static_cast<double>(wanted));
  return std::max(cautious, std::min(wanted, 2 * chunk_estimate(run)));
}

// A window of two chunks also fits two of different sizes, even if they are together more than twice the mean.
bool PrefetchPlanner::takes_a_second(const ReadRun& run, uint64_t next_bytes, uint64_t window) const {
  const uint64_t chunk = chunk_estimate(run);
  return window >= 2 * chunk && 2 * run.outstanding_bytes() < 3 * std::max(next_bytes, chunk);  // about one is ahead
}

// Refills when half empty, so that neighbours are read in large reads and not one by one.
bool PrefetchPlanner::needs_loads(const ReadRun& run, int64_t now) const {
  if (run.generation == 0) return false;
  const uint64_t window = window_bytes(run);
  if (run.outstanding_bytes() >= window || waits_for_probes(run, now)) return false;
  if (run.refilling) return true;
  const size_t unplanned = run.ahead_count() - run.unplanned_distance();
  if (run.arrivals == 0 && run.reason == LoadReason::kProbe) return unplanned > 0;
  const uint64_t next_bytes = unplanned > 0 ? run.unplanned_bytes_estimate() : 0;
  return (2 * run.outstanding_bytes() <= window || takes_a_second(run, next_bytes, window)) &&
         (unplanned > 0 ||
          (!run.ends_here && run.end_seen != successors_.changes() && run.ahead_count() >= kMinExpected));
}

// A list that is being probed grows, and no reader waits for it yet: it is read in whole requests to the volume.
bool PrefetchPlanner::waits_for_probes(const ReadRun& run, int64_t now) const {
  if (run.reason != LoadReason::kProbe || run.arrivals > 0 || run.listed) return false;
  if (now >= run.last_activity + kProbeQuietNs) return false;
  const uint64_t request = std::max<uint64_t>(kProbedReadBytes / chunk_estimate(run), 1);
  return run.planned_objects % request == 0 && run.ahead_count() - run.unplanned_distance() < request;
}

// `size_bytes` is 0 for an object known only through its chain.
bool PrefetchPlanner::expect(ReadRun& run, ObjectId id, uint64_t size_bytes) {
  const uint64_t bytes = bookable(run, size_bytes > 0 ? size_bytes : chunk_estimate(run));
  if (run.size() >= kMaxExpected || !run.append(id, bytes)) return false;
  Note& n = note(id);
  n.expected_by = ref_of(run);
  ++n.claims;
  return true;
}

// Expects the object with the size that a probe saw; updates the size if it was already expected.
void PrefetchPlanner::book(ReadRun& run, ObjectId id, uint64_t size_bytes) {
  if (!expect(run, id, size_bytes) && size_bytes > 0) run.set_bytes(id, bookable(run, size_bytes));
}

// Follows the chain by one object. Returns false at its end, at an open branch, and where another reader is at work.
bool PrefetchPlanner::extend(ReadRun& run) {
  if (run.ends_here || !run.tail.valid()) return false;
  const ObjectId next = successors_.next(run.tail);
  const Note* n = next.valid() ? find_note(next) : nullptr;
  const bool ring = n != nullptr && n->read_by == ref_of(run);
  // The part of another thread of the same request: that thread's run reads it ahead.
  if (n != nullptr && !ring && !run.second_reader && live(n->read_by) != nullptr && !run.expects(next)) return false;
  if (!next.valid() || run.expects(next) || ring || !worth_reading(run, next)) {
    run.end_seen = successors_.changes();
    return false;
  }
  return expect(run, next);
}

// The last object of a chain is often the partly filled end of a prompt, which no other prompt contains.
bool PrefetchPlanner::worth_reading(ReadRun& run, ObjectId next) {
  if (run.chain_end == next) return false;  // decided before
  if (successors_.has_successor(next)) return true;
  run.chain_end = next;
  return trust_.trusts_chain_end(run.stem);
}

uint64_t PrefetchPlanner::room_bytes() const {
  uint64_t taken = 0;
  for (uint32_t slot : live_slots_) taken += runs_[slot].outstanding_bytes();
  return options_.total_max_bytes > taken ? options_.total_max_bytes - taken : 0;
}

bool PrefetchPlanner::plan_one(ReadRun& run, int64_t now, uint64_t& free_bytes, uint64_t& room_bytes, Plan& out) {
  if (run.outstanding_bytes() >= window_bytes(run) || waits_for_probes(run, now)) return false;
  if (!run.peek_unplanned().valid() && !extend(run)) return false;
  const ObjectId id = run.peek_unplanned();
  const uint64_t bytes = run.unplanned_bytes_estimate();
  // The first object may be larger than the window; the following ones must not cross it.
  const uint64_t window = window_bytes(run);
  if (run.outstanding_bytes() > 0 && run.outstanding_bytes() + bytes > window && !takes_a_second(run, bytes, window)) return false;
  if (bytes > room_bytes) return false;
  if (accounting_.state(id) == PrefetchState::kNone) {
    if (bytes > free_bytes) return false;
    free_bytes -= bytes;
    accounting_.planned(id);
    const bool guess = !run.has_reader();
    const auto priority = static_cast<uint32_t>(run.unplanned_distance()) + (guess ? kGuessPriority : 0);
    out.loads.push_back({id, priority, run.reason, ref_of(run).slot, bytes, guess});
  } else if (accounting_.state(id) == PrefetchState::kUsed) {
    out.again.push_back(id);
  }
  room_bytes -= bytes;
  run.take_unplanned();
  return true;
}

// Serves the runs with a reader first, then guesses; in turns, so that no run takes all the room. The next plan continues with
// the runs whose turn did not come.
void PrefetchPlanner::feed(std::vector<ReadRun*>& hungry, int64_t now, uint64_t free_bytes, Plan& out) {
  uint64_t room = room_bytes();
  const auto is_full = [&] { return out.loads.size() >= options_.max_loads_per_plan; };
  const auto guesses = std::stable_partition(hungry.begin(), hungry.end(), [](const ReadRun* run) { return run->has_reader(); });
  std::vector<ReadRun*> kinds[] = {{hungry.begin(), guesses}, {guesses, hungry.end()}};
  for (std::vector<ReadRun*>& runs : kinds) {
    if (runs.empty() || is_full()) continue;
    std::rotate(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(turn_ % runs.size()), runs.end());
    while (!runs.empty() && !is_full()) {
      std::erase_if(runs, [&](ReadRun* run) {
        if (is_full()) return false;
        ++turn_;
        run->refilling = plan_one(*run, now, free_bytes, room, out);
        return !run->refilling;
      });
    }
  }
}

Plan PrefetchPlanner::plan(int64_t now, uint64_t free_bytes) {
  Plan out;
  std::vector<ReadRun*> hungry;
  next_due_ = INT64_MAX;
  for (size_t i = live_slots_.size(); i > 0; --i) {  // from the back: finish() removes the run
    ReadRun& run = runs_[live_slots_[i - 1]];
    if (expired(run, now)) {
      finish(run);
      continue;
    }
    due_at(now > expiry(run) ? now + kStoppedMinNs : expiry(run) + 1);  // later, if it waits for the volume
    if (needs_loads(run, now))
      hungry.push_back(&run);
    else
      run.refilling = false;  // exactly full: from now on it is refilled when half empty, as usual
  }
  feed(hungry, now, free_bytes, out);
  for (uint32_t slot : live_slots_)
    if (waits_for_probes(runs_[slot], now)) due_at(runs_[slot].last_activity + kProbeQuietNs);
  std::stable_sort(out.loads.begin(), out.loads.end(),
                   [](const PlannedLoad& a, const PlannedLoad& b) { return a.priority < b.priority; });
  attention_ = out.loads.size() >= options_.max_loads_per_plan;
  // An object given up twice is cancelled once; one given up and expected again meanwhile is not.
  std::sort(cancels_.begin(), cancels_.end());
  cancels_.erase(std::unique(cancels_.begin(), cancels_.end()), cancels_.end());
  std::erase_if(cancels_,
                [&](ObjectId id) { return accounting_.state(id) != PrefetchState::kPlanned || about_to_be_used(id); });
  out.cancels.swap(cancels_);
  return out;
}

}  // namespace kvcachefs
