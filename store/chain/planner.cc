#include "store/chain/planner.h"

#include <algorithm>
#include <utility>

#include "store/chain/planner_limits.h"

namespace kvcachefs {

namespace {

// Pauses: probes come back to back unless the processor is busy; reads come as fast as the engine copies the data on.
constexpr int64_t kProbeMinPauseNs = 10'000'000;
constexpr int64_t kProbeFirstPauseNs = 20'000'000;
constexpr int64_t kProbeMaxPauseNs = 50'000'000;
constexpr int64_t kReadMinPauseNs = 20'000'000;
constexpr int64_t kReadFirstPauseNs = 200'000'000;
constexpr int64_t kReadMaxPauseNs = 2'000'000'000;

constexpr uint32_t kRetryReads = 4;  // per reader: two opens of an object within so many reads are one use
constexpr uint64_t kSettledArrivals = 32;  // before that, a reader waits because nothing was read ahead yet

constexpr size_t kMostNotesKept = 8;  // in one call
constexpr size_t kMaxSiblings = 8;

}  // namespace

PrefetchPlanner::PrefetchPlanner(PlannerOptions options, const StreamTable& streams, SuccessorTable& successors,
                                 Announcements& announcements, PrefetchAccounting& accounting)
    : options_(options),
      streams_(streams),
      successors_(successors),
      announcements_(announcements),
      accounting_(accounting),
      states_(streams.capacity()),
      runs_(std::max<size_t>(options.max_runs, 2)) {
  for (size_t slot = runs_.size(); slot > 0; --slot) free_slots_.push_back(static_cast<uint32_t>(slot - 1));
}

// ---- Small state ----------------------------------------------------------------------------------------------------

PrefetchPlanner::StreamState& PrefetchPlanner::state(StreamId stream) {
  StreamState& s = states_[stream.slot];
  if (s.generation != stream.generation) {
    if (ReadRun* run = live(s.run); run != nullptr && run->streams > 0) --run->streams;
    s = StreamState{};
    s.generation = stream.generation;
  }
  return s;
}

PrefetchPlanner::Note& PrefetchPlanner::note(ObjectId id) {
  auto [found, inserted] = notes_.try_emplace(id);
  if (inserted) {
    note_order_.push_back(id);
    forget_notes();
  }
  return notes_.find(id)->second;
}

// Keeps expected objects for another round: a few in each call, and at most as many again.
void PrefetchPlanner::forget_notes() {
  const size_t most = std::max(options_.max_notes, 2 * kMostNotesKept);
  for (size_t kept = 0; note_order_.size() > most && kept < kMostNotesKept;) {
    const ObjectId oldest = note_order_.front();
    note_order_.pop_front();
    auto found = notes_.find(oldest);
    if (found->second.claims > 0 && note_order_.size() < 2 * most) {
      ++kept;
      note_order_.push_back(oldest);
    } else {
      notes_.erase(found);
    }
  }
}

const PrefetchPlanner::Note* PrefetchPlanner::find_note(ObjectId id) const {
  auto found = notes_.find(id);
  return found == notes_.end() ? nullptr : &found->second;
}

const ReadRun* PrefetchPlanner::live(RunRef ref) const {
  if (ref.generation == 0 || runs_[ref.slot].generation != ref.generation) return nullptr;
  return &runs_[ref.slot];
}
ReadRun* PrefetchPlanner::live(RunRef ref) { return const_cast<ReadRun*>(std::as_const(*this).live(ref)); }

PrefetchPlanner::RunRef PrefetchPlanner::ref_of(const ReadRun& run) const {
  return RunRef{static_cast<uint32_t>(&run - runs_.data()), run.generation};
}

void PrefetchPlanner::set_ahead_max_bytes(uint64_t bytes) {
  options_.ahead_max_bytes = bytes;  // this makes first windows smaller
}

// ---- Probes ---------------------------------------------------------------------------------------------------------

void PrefetchPlanner::on_probe(StreamId stream, ChainKey key, ObjectId id, uint64_t size_bytes, int64_t now) {
  if (!streams_.live(stream)) return;
  StreamState& s = state(stream);
  if (s.last_probe == key && s.last_probe_id == id) return;  // the same name asked for twice: stat after access
  bool continues = s.probes.tick(now, kProbeMinPauseNs, kProbeFirstPauseNs, kProbeMaxPauseNs);
  // A prompt's present blocks come before its absent ones: a present block after an absent one begins another prompt.
  if (id.valid() && !s.last_probe_id.valid()) continues = false;
  if (!continues) {
    s.present_in_a_row = 0;
    s.probe_run = RunRef{};
  }
  s.last_probe_announced = note_probe_order(s, continues, key, id, now);
  if (id.valid()) {
    if (++s.present_in_a_row >= 2) extend_probe_run(s, streams_.stem(stream), id, size_bytes, now);
  } else {
    if (ReadRun* run = live(s.probe_run)) {
      run->ends_here = run->listed = true;
      attention_ = attention_ || needs_loads(*run, now);
    }
    s.probe_run = RunRef{};
    s.present_in_a_row = 0;
  }
  s.last_probe = key;
  s.last_probe_id = id;
  s.last_probe_bytes = size_bytes;
}

// Returns true if it announced a name for the first time.
bool PrefetchPlanner::note_probe_order(StreamState& s, bool continues, ChainKey key, ObjectId id, int64_t now) {
  if (id.valid()) {
    // Engines that ask in no order at all must not spoil known links; nor must a reader that goes over its list again to open
    // what it found.
    const ReadRun* listed = live(s.probe_run);
    if (continues && (listed == nullptr || !listed->expects(id))) successors_.learn_if_unknown(s.last_probe_id, id);
    return false;
  }
  if (continues) return announcements_.note(s.last_probe, s.last_probe_id, key, id, now);
  return announcements_.note(ChainKey{}, ObjectId{}, key, id, now);
}

void PrefetchPlanner::on_made(StreamId stream, ChainKey key) {
  if (!streams_.live(stream)) return;
  StreamState& s = state(stream);
  if (!(s.last_probe == key)) return;
  if (s.last_probe_announced) announcements_.retract(key);
  s.last_probe = ChainKey{};
  s.last_probe_id = ObjectId{};
  s.last_probe_announced = false;
  s.present_in_a_row = 0;
}

void PrefetchPlanner::extend_probe_run(StreamState& s, uint64_t stem, ObjectId id, uint64_t size_bytes, int64_t now) {
  note_size(stem, size_bytes);
  ReadRun* run = live(s.probe_run);
  if (run == nullptr) {
    const Note* known = find_note(s.last_probe_id);
    ReadRun* other = known == nullptr ? nullptr : live(known->expected_by);
    // Probed again before it is read: the same run.
    if (other != nullptr && other->expects(s.last_probe_id)) {
      run = other;
    } else {
      run = &new_run(LoadReason::kProbe, stem, now);
      run->ends_here = true;  // where the probes end; a reader that goes further restarts it
      attention_ = true;      // so that plan() sets its deadline
    }
    s.probe_run = ref_of(*run);
    book(*run, s.last_probe_id, s.last_probe_bytes);
  }
  const Note* known = find_note(id);
  if (known == nullptr || !(known->read_by == s.probe_run)) book(*run, id, size_bytes);
  run->last_activity = std::max(run->last_activity, now);
  attention_ = attention_ || needs_loads(*run, now);
}

// ---- Opens ----------------------------------------------------------------------------------------------------------

void PrefetchPlanner::on_open(StreamId stream, ObjectId id, uint64_t size_bytes, int64_t now) {
  if (!streams_.live(stream) || !id.valid()) return;
  accounting_.wanted(id);
  StreamState& s = state(stream);
  s.present_in_a_row = 0;
  const uint64_t stem = streams_.stem(stream);
  ReadRun* run = run_expecting(s, id);
  if (run == nullptr) {
    const Note* known = find_note(id);
    ReadRun* own = live(s.run);
    if (own != nullptr && known != nullptr && known->read_by == s.run) {
      if (is_retry(*own, *known)) {
        note(id).read_at = own->reads;
        own->last_activity = now;
        return;
      }
      leave_run(s, now);  // the same prompt once more
      if (own->streams == 0) finish(*own);
    }
  }
  const ObjectId before = last_read_before(stem, stream, id, now);
  adapt_windows(run != nullptr && run->arrivals >= kSettledArrivals && accounting_.state(id) == PrefetchState::kAwaited, now);
  if (run != nullptr) {
    join(*run, id, before, size_bytes, now);
  } else {
    run = &follow_or_begin(s, stem, id, before, now);
    mark_read(*run, id, size_bytes, now);
  }
  move_stream(s, *run, now);
  while (run->ahead_count() < kMinExpected && extend(*run)) {
  }
  attention_ = attention_ || needs_loads(*run, now);
}

// The object read just before by the threads that read this chain together.
ObjectId PrefetchPlanner::last_read_before(uint64_t stem, StreamId stream, ObjectId id, int64_t now) {
  const uint64_t member = (static_cast<uint64_t>(stream.generation) << 32) | stream.slot;
  const uint64_t cohort = read_cohorts_.cohort(stem, member, now);
  if (read_orders_.size() >= kMaxTables && !read_orders_.contains(cohort)) read_orders_.clear();
  ReadOrder& order = read_orders_[cohort];
  const bool continues = order.clock.tick(now, kReadMinPauseNs, kReadFirstPauseNs, kReadMaxPauseNs);
  const ObjectId before = continues ? order.last : ObjectId{};
  order.last = id;
  return before;
}

ReadRun* PrefetchPlanner::run_expecting(const StreamState& stream, ObjectId id) {
  if (ReadRun* own = live(stream.run); own != nullptr && own->expects(id)) return own;
  const Note* known = find_note(id);
  ReadRun* run = known == nullptr ? nullptr : live(known->expected_by);
  return run != nullptr && run->expects(id) ? run : nullptr;
}

void PrefetchPlanner::join(ReadRun& run, ObjectId id, ObjectId before, uint64_t size_bytes, int64_t now) {
  const ObjectId parent = successors_.predecessor(id);
  if (!parent.valid()) {
    if (run.arrivals > 0) successors_.learn(before, id);
  } else if (const Note* n = find_note(parent); n != nullptr && n->read_by == ref_of(run)) {
    successors_.learn(parent, id);
  }
  if (run.chain_end == id) judge_chain_end(run, true);
  scratch_.clear();
  const bool first = run.arrivals == 0;
  release_claim(id);
  run.arrive(id, scratch_);
  give_up(scratch_);
  if (run.allowed_bytes == 0) run.allowed_bytes = first_window(run);
  mark_read(run, id, size_bytes, now);
  run.allowed_bytes = std::min(run.allowed_bytes + 2 * chunk_estimate(run), options_.ahead_max_bytes);
  if (first && run.reason != LoadReason::kSibling) begin_siblings(id, run.stem, now);
}

// True for head and tail of one file, or a second attempt; otherwise the prompt is read once more.
bool PrefetchPlanner::is_retry(const ReadRun& run, const Note& note) const {
  return run.reads - note.read_at <= kRetryReads * std::max<uint32_t>(run.streams, 1);
}

// A reader opened an object that no run expected.
ReadRun& PrefetchPlanner::follow_or_begin(StreamState& s, uint64_t stem, ObjectId id, ObjectId before, int64_t now) {
  const ObjectId parent = successors_.predecessor(id);
  successors_.learn(before, id);
  const Note* n = parent.valid() ? find_note(parent) : nullptr;
  ReadRun* run = n == nullptr ? nullptr : live(n->read_by);
  if (run == nullptr && before.valid()) {
    // No known link: the reader continues along a chain that is only now learned.
    const Note* b = find_note(before);
    if (ReadRun* own = live(s.run); b != nullptr && own != nullptr && b->read_by == s.run && own->ahead_count() == 0) {
      run = own;
    }
  }
  // A chain that ends where it begins: the previous run has read this object, and would take those that follow for read too.
  if (const Note* own = find_note(id); run != nullptr && own != nullptr && own->read_by == ref_of(*run)) {
    if (run->streams == 0 || (run->streams == 1 && s.run == ref_of(*run))) finish(*run);
    run = nullptr;
  }
  const bool alone = run != nullptr && (run->streams == 0 || (run->streams == 1 && s.run == ref_of(*run)));
  if (alone || (run != nullptr && run->ahead_count() == 0)) {  // the other branch, or beyond the known end
    if (run->ahead_count() > 0) run->allowed_bytes = std::min(run->allowed_bytes, first_window(*run));
    restart(*run, id, now);
    return *run;
  }
  const bool known = n != nullptr;
  ReadRun& fresh = new_run(LoadReason::kSuccessor, stem, now);
  restart(fresh, id, now);
  if (!known) begin_siblings(id, stem, now);
  return fresh;
}

void PrefetchPlanner::restart(ReadRun& run, ObjectId id, int64_t now) {
  if (run.chain_end == id) judge_chain_end(run, true);
  judge(run);
  drop_expected(run);
  run.tail = id;
  run.end_seen = ReadRun::kNoEnd;
  run.ends_here = false;
  run.last_activity = std::max(run.last_activity, now);
}

// What the other ranks will read, if they read on this node at all, which their trust tells.
void PrefetchPlanner::begin_siblings(ObjectId id, uint64_t stem, int64_t now) {
  std::vector<ObjectId> others;
  successors_.siblings(id, kMaxSiblings, others);
  if (others.empty() || !trust_.trusts_run(stem, LoadReason::kSibling)) return;
  for (ObjectId other : others) {
    const Note* n = find_note(other);
    if (n != nullptr && (live(n->read_by) != nullptr || about_to_be_used(other))) continue;
    ReadRun& run = new_run(LoadReason::kSibling, stem, now);
    expect(run, other);
    while (run.ahead_count() < kMinExpected && extend(run)) {
    }
    attention_ = attention_ || needs_loads(run, now);
  }
}

void PrefetchPlanner::mark_read(ReadRun& run, ObjectId id, uint64_t size_bytes, int64_t now) {
  Note& n = note(id);
  const RunRef ref = ref_of(run);
  if (!(n.read_by == ref) && live(n.read_by) != nullptr) run.second_reader = true;
  n.read_by = ref;
  n.read_at = ++run.reads;
  if (size_bytes > 0) {
    run.chunk_bytes = run.chunk_bytes == 0 ? size_bytes : (3 * run.chunk_bytes + size_bytes + 3) / 4;
    typical_chunk_bytes_ = (7 * typical_chunk_bytes_ + size_bytes) / 8;
    note_size(run.stem, size_bytes);
  }
  if (run.last_arrival >= 0) {
    const int64_t gap = std::max<int64_t>(now - run.last_arrival, 0);
    run.interval_ns = run.interval_ns < 0 ? gap : (7 * run.interval_ns + gap) / 8;
  }
  run.last_arrival = run.last_activity = now;
}

void PrefetchPlanner::on_read(StreamId stream, ObjectId id, uint64_t offset, uint64_t length, int64_t now) {
  (void)offset;
  if (length > 0) accounting_.read(id);
  if (!streams_.live(stream)) return;
  // A long read of a large object does not mean that the reader stopped.
  if (ReadRun* run = live(state(stream).run)) run->last_activity = std::max(run->last_activity, now);
}

void PrefetchPlanner::on_close(StreamId stream, ObjectId id, int64_t now) { on_read(stream, id, 0, 0, now); }

// ---- Loads ----------------------------------------------------------------------------------------------------------

void PrefetchPlanner::on_loaded(ObjectId id, uint64_t bytes, int64_t latency_ns, int64_t now) {
  volume_.on_load(bytes, latency_ns, now);
  note_load_end(now);
  const bool awaited = accounting_.state(id) == PrefetchState::kAwaited;
  if (!accounting_.loaded(id, bytes)) return;
  const Note* n = find_note(id);
  if (ReadRun* reader = n == nullptr || !awaited ? nullptr : live(n->read_by))
    reader->last_activity = std::max(reader->last_activity, now);
  ReadRun* run = n == nullptr ? nullptr : live(n->expected_by);
  if (run == nullptr) return;
  run->set_only_opens(false, most_bookable());
  run->set_bytes(id, bookable(*run, bytes));
  attention_ = attention_ || needs_loads(*run, now);
}

void PrefetchPlanner::on_skipped(ObjectId id, SkipReason reason) {
  if (reason == SkipReason::kCancelled) {
    accounting_.cancelled(id);
  } else {
    accounting_.skipped(id);
  }
  if (reason == SkipReason::kGone) successors_.erase(id);
  if (reason != SkipReason::kOnlyOpened && reason != SkipReason::kLeftToKernel) return;
  const Note* n = find_note(id);
  if (ReadRun* run = n == nullptr ? nullptr : live(n->expected_by))
    run->set_only_opens(reason == SkipReason::kOnlyOpened, most_bookable());
}

void PrefetchPlanner::on_removed(ObjectId id) { accounting_.removed(id); }

void PrefetchPlanner::on_deleted(ObjectId id) {
  accounting_.removed(id);
  successors_.erase(id);
}

}  // namespace kvcachefs
