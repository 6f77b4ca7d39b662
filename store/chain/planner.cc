#include "store/chain/planner.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {
namespace {

// Pauses: probes come back to back but for a busy processor, reads as fast as the engine copies them on.
constexpr int64_t kProbeMinPauseNs = 10'000'000;
constexpr int64_t kProbeFirstPauseNs = 20'000'000;
constexpr int64_t kProbeMaxPauseNs = 50'000'000;
constexpr int64_t kReadMinPauseNs = 20'000'000;
constexpr int64_t kReadFirstPauseNs = 200'000'000;
constexpr int64_t kReadMaxPauseNs = 2'000'000'000;
// Probes that come so much later than the one before are not waited for.
constexpr int64_t kProbeQuietNs = 2'000'000;
constexpr uint64_t kProbedReadBytes = uint64_t{1} << 20;
constexpr uint64_t kListedWindowBytes = uint64_t{32} << 20;
// When a run counts as stopped. An announced run waits for the engine's scheduler; one whose threads all read
// elsewhere only for the next thread of a pool to come.
constexpr int64_t kStoppedMinNs = 500'000'000;
constexpr int64_t kStoppedFirstNs = 2'000'000'000;
constexpr int64_t kStoppedMaxNs = 30'000'000'000;
constexpr int64_t kAnnouncedNs = 5'000'000'000;
constexpr int64_t kSiblingNs = 500'000'000;  // ranks read a prefix at the same time or not at all
constexpr int64_t kOrphanNs = 20'000'000;

constexpr uint32_t kRetryReads = 4;  // of each reader, between two opens of one object that are one use of it
constexpr uint64_t kSettledArrivals = 32;  // before, a reader waits because nothing was read ahead yet
constexpr int kMostWidened = 3;
constexpr int64_t kWidenPauseNs = 20'000'000;  // for the last widening to show
constexpr int64_t kNarrowAfterNs = 10'000'000'000;

constexpr size_t kMostNotesKept = 8;  // in one call
constexpr size_t kMinExpected = 32;  // enough to recognise the other threads of a pool of readers
constexpr size_t kMaxExpected = 16384;
constexpr size_t kMaxSiblings = 8;
constexpr uint32_t kGuessPriority = 1000;
constexpr int8_t kTrustStart = 4;
constexpr int8_t kTrustMax = 8;
constexpr uint64_t kRetryGated = 32;  // an untrusted kind of run is tried again every so often
constexpr size_t kMaxTables = 4096;

int8_t stepped(int8_t trust, bool right) {
  return static_cast<int8_t>(right ? std::min<int>(trust + 1, kTrustMax) : std::max<int>(trust - 1, 0));
}

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

// What a run expects is kept for another round: a few in each call, and not more than as much again.
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

PrefetchPlanner::Trust& PrefetchPlanner::trust(uint64_t stem) {
  if (trust_.size() >= kMaxTables && !trust_.contains(stem)) trust_.clear();
  return trust_.try_emplace(stem, Trust{{kTrustStart, kTrustStart, kTrustStart}, kTrustStart, 1.0F}).first->second;
}

bool PrefetchPlanner::trusted(uint64_t stem, LoadReason reason) {
  return trust(stem).by_reason[static_cast<size_t>(reason)] > 0 || ++gated_runs_ % kRetryGated == 0;
}

void PrefetchPlanner::set_ahead_max_bytes(uint64_t bytes) {
  options_.ahead_max_bytes = bytes;  // first windows are smaller of themselves then
}

// ---- Runs -----------------------------------------------------------------------------------------------------------

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
  chosen->allowed_bytes = trusted(stem, reason) ? first_window(*chosen) : 0;
  due_at(now + kStoppedMinNs);
  return *chosen;
}

void PrefetchPlanner::release_claim(ObjectId id) {
  if (auto found = notes_.find(id); found != notes_.end() && found->second.claims > 0) --found->second.claims;
}

// A run does not expect these any more. Planned, not loaded and not expected by another run: cancelled.
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

// The reader left the chain that was followed, or stopped.
void PrefetchPlanner::judge(ReadRun& run) {
  if (run.chain_end.valid()) judge_chain_end(run, false);
  const uint64_t planned = run.planned_objects - run.planned_before;
  if (planned == 0 || run.ends_here) return;
  const double used =
      1.0 - static_cast<double>(std::min<uint64_t>(run.unread_planned(), planned)) / static_cast<double>(planned);
  float& share = trust(run.stem).used_share;
  // Long runs weigh more: bytes count, not runs.
  const double weight = std::min(0.25, static_cast<double>(planned) / 256.0);
  share = static_cast<float>(share + (used - share) * weight);
  run.planned_before = run.planned_objects;
}

void PrefetchPlanner::judge_chain_end(ReadRun& run, bool reached) {
  int8_t& t = trust(run.stem).chain_ends;
  t = stepped(t, reached);
  run.chain_end = ObjectId{};
}

void PrefetchPlanner::finish(ReadRun& run) {
  // A run that was gated, but would have been right, counts too.
  if (run.planned_objects > 0 || run.arrivals > 1) {
    int8_t& t = trust(run.stem).by_reason[static_cast<size_t>(run.reason)];
    t = stepped(t, run.arrivals > 0);
  }
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

// Loads of its own are under way, and no load of anybody has ended since its reader came last: he may be waiting, too.
bool PrefetchPlanner::waits_for_volume(const ReadRun& run) const {
  if (run.streams == 0 || run.orphaned_at >= 0 || load_ended_at_ > run.last_activity) return false;
  return run.any_unread_planned([&](ObjectId id) { return accounting_.state(id) == PrefetchState::kPlanned; });
}

// Readers that waited for a volume that gave nothing for a while are given their time from now on.
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

// ---- Probes ---------------------------------------------------------------------------------------------------------

void PrefetchPlanner::on_probe(StreamId stream, ChainKey key, ObjectId id, uint64_t size_bytes, int64_t now) {
  if (!streams_.live(stream)) return;
  StreamState& s = state(stream);
  if (s.last_probe == key && s.last_probe_id == id) return;  // the same name asked for twice: stat after access
  bool continues = s.probes.tick(now, kProbeMinPauseNs, kProbeFirstPauseNs, kProbeMaxPauseNs);
  // A prompt's present blocks come before its absent ones: present after absent is another prompt.
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

// True if it announced a name for the first time.
bool PrefetchPlanner::note_probe_order(StreamState& s, bool continues, ChainKey key, ObjectId id, int64_t now) {
  if (id.valid()) {
    // Engines that ask in no order at all must not spoil what is known.
    if (continues) successors_.learn_if_unknown(s.last_probe_id, id);
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
      attention_ = true;      // for plan() to set its deadline
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

// Head and tail of one file, or a second attempt; else the prompt is read once more.
bool PrefetchPlanner::is_retry(const ReadRun& run, const Note& note) const {
  return run.reads - note.read_at <= kRetryReads * std::max<uint32_t>(run.streams, 1);
}

// A reader opens what no run expected.
ReadRun& PrefetchPlanner::follow_or_begin(StreamState& s, uint64_t stem, ObjectId id, ObjectId before, int64_t now) {
  const ObjectId parent = successors_.predecessor(id);
  successors_.learn(before, id);
  const Note* n = parent.valid() ? find_note(parent) : nullptr;
  ReadRun* run = n == nullptr ? nullptr : live(n->read_by);
  if (run == nullptr && before.valid()) {
    // Nothing is known: the reader goes on along a chain that is only now learned.
    const Note* b = find_note(before);
    if (ReadRun* own = live(s.run); b != nullptr && own != nullptr && b->read_by == s.run && own->ahead_count() == 0) {
      run = own;
    }
  }
  // A chain that ends where it begins: the run before has read this object, and would take what follows for read too.
  if (const Note* own = find_note(id); run != nullptr && own != nullptr && own->read_by == ref_of(*run)) {
    if (run->streams == 0 || (run->streams == 1 && s.run == ref_of(*run))) finish(*run);
    run = nullptr;
  }
  const bool alone = run != nullptr && (run->streams == 0 || (run->streams == 1 && s.run == ref_of(*run)));
  if (alone || (run != nullptr && run->ahead_count() == 0)) {  // the other branch, or past the end that was known
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

// What the other ranks will read, if they read on this node at all: trust tells.
void PrefetchPlanner::begin_siblings(ObjectId id, uint64_t stem, int64_t now) {
  std::vector<ObjectId> others;
  successors_.siblings(id, kMaxSiblings, others);
  if (others.empty() || !trusted(stem, LoadReason::kSibling)) return;
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
    run.chunk_bytes = run.chunk_bytes == 0 ? size_bytes : (3 * run.chunk_bytes + size_bytes) / 4;
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
  // A long read of a large object is not a reader that stopped.
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
  run->set_only_opens(false);
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
  if (reason != SkipReason::kOnlyOpened) return;
  const Note* n = find_note(id);
  if (ReadRun* run = n == nullptr ? nullptr : live(n->expected_by)) run->set_only_opens(true);
}

void PrefetchPlanner::on_removed(ObjectId id) { accounting_.removed(id); }

void PrefetchPlanner::on_deleted(ObjectId id) {
  accounting_.removed(id);
  successors_.erase(id);
}

uint64_t PrefetchPlanner::chunk_estimate(const ReadRun& run) const {
  if (run.chunk_bytes != 0) return run.chunk_bytes;
  auto found = stem_chunk_bytes_.find(run.stem);
  return found == stem_chunk_bytes_.end() ? typical_chunk_bytes_ : found->second;
}

void PrefetchPlanner::note_size(uint64_t stem, uint64_t size_bytes) {
  if (size_bytes == 0) return;
  if (stem_chunk_bytes_.size() >= kMaxTables && !stem_chunk_bytes_.contains(stem)) stem_chunk_bytes_.clear();
  auto [found, inserted] = stem_chunk_bytes_.try_emplace(stem, size_bytes);
  if (!inserted) found->second = (7 * found->second + size_bytes) / 8;
}

// What is larger than all that may be ready takes all of it: else it would hold up what follows it for ever. What is only
// opened takes little: many are opened at a time, instead of the prefetcher being woken for each.
uint64_t PrefetchPlanner::bookable(const ReadRun& run, uint64_t bytes) const {
  return std::min({run.share(bytes), options_.ahead_max_bytes, options_.total_max_bytes});
}

// At least two chunks, or a chunk larger than the window would never be read ahead. What is left of a list that is known in
// full, of a kind that readers come for.
uint64_t PrefetchPlanner::first_window(const ReadRun& run) const {
  uint64_t wanted = std::max(options_.ahead_min_bytes, 2 * chunk_estimate(run));
  if (run.reason == LoadReason::kProbe && run.ends_here && run.listed && proven(run.stem, run.reason)) {
    const uint64_t share = options_.total_max_bytes / std::max<size_t>(live_slots_.size(), 1);
    wanted = std::max(wanted, std::min({run.ahead_bytes(), kListedWindowBytes, share}));
  }
  return std::min(wanted, options_.ahead_max_bytes);
}

// Readers came for more of these runs than they left alone.
bool PrefetchPlanner::proven(uint64_t stem, LoadReason reason) const {
  auto found = trust_.find(stem);
  return found != trust_.end() && found->second.by_reason[static_cast<size_t>(reason)] > kTrustStart;
}

// Readers of some stems leave chains early (prompts branch, and nobody announces how far one goes): the more of what
// was read ahead for them stayed unread, the less is.
double PrefetchPlanner::caution(const ReadRun& run) const {
  if (run.ends_here) return 1.0;
  auto found = trust_.find(run.stem);
  const double share = found == trust_.end() ? 1.0 : static_cast<double>(found->second.used_share);
  return std::clamp((share - 0.5) / 0.45, 1.0 / 64, 1.0);
}

// What is measured of the volume is its best; how long loads take beside writers, other readers and a busy processor is seen
// by readers who have to wait.
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
  // Twice what fills the volume's pipe, and twice what the reader takes while a load is under way.
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

// Refilled when half empty, so that neighbours are read in large reads and not one by one.
bool PrefetchPlanner::needs_loads(const ReadRun& run, int64_t now) const {
  if (run.generation == 0) return false;
  const uint64_t window = window_bytes(run);
  if (run.outstanding_bytes() >= window || waits_for_probes(run, now)) return false;
  if (run.refilling) return true;
  const size_t unplanned = run.ahead_count() - run.unplanned_distance();
  if (run.arrivals == 0 && run.reason == LoadReason::kProbe) return unplanned > 0;
  return 2 * run.outstanding_bytes() <= window &&
         (unplanned > 0 ||
          (!run.ends_here && run.end_seen != successors_.changes() && run.ahead_count() >= kMinExpected));
}

// A list that is being probed grows, and nobody waits for it yet: it is read in whole requests to the volume.
bool PrefetchPlanner::waits_for_probes(const ReadRun& run, int64_t now) const {
  if (run.reason != LoadReason::kProbe || run.arrivals > 0 || run.listed) return false;
  if (now >= run.last_activity + kProbeQuietNs) return false;
  const uint64_t request = std::max<uint64_t>(kProbedReadBytes / chunk_estimate(run), 1);
  return run.planned_objects % request == 0 && run.ahead_count() - run.unplanned_distance() < request;
}

// `size_bytes` is 0 for what is known only through its chain.
bool PrefetchPlanner::expect(ReadRun& run, ObjectId id, uint64_t size_bytes) {
  const uint64_t bytes = bookable(run, size_bytes > 0 ? size_bytes : chunk_estimate(run));
  if (run.size() >= kMaxExpected || !run.append(id, bytes)) return false;
  Note& n = note(id);
  n.expected_by = ref_of(run);
  ++n.claims;
  return true;
}

// Expected with the size that a probe saw, from now on if it was expected before.
void PrefetchPlanner::book(ReadRun& run, ObjectId id, uint64_t size_bytes) {
  if (!expect(run, id, size_bytes) && size_bytes > 0) run.set_bytes(id, bookable(run, size_bytes));
}

// Follows the chain by one object. False at its end, at an open branch, and where another reader is at work.
bool PrefetchPlanner::extend(ReadRun& run) {
  if (run.ends_here || !run.tail.valid()) return false;
  const ObjectId next = successors_.next(run.tail);
  const Note* n = next.valid() ? find_note(next) : nullptr;
  const bool ring = n != nullptr && n->read_by == ref_of(run);
  // The part of another thread of the same request: that run reads it ahead by itself.
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
  return trust(run.stem).chain_ends > 0 || ++gated_runs_ % kRetryGated == 0;
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
  // The first object may be larger than the window, the following ones not cross it.
  if (run.outstanding_bytes() > 0 && run.outstanding_bytes() + bytes > window_bytes(run)) return false;
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

// Runs that somebody reads, then guesses; turn by turn, so that no run takes all the room. The next plan goes on with those
// whose turn did not come.
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
  for (size_t i = live_slots_.size(); i > 0; --i) {  // from the back: finish() takes the run out
    ReadRun& run = runs_[live_slots_[i - 1]];
    if (expired(run, now)) {
      finish(run);
      continue;
    }
    due_at(now > expiry(run) ? now + kStoppedMinNs : expiry(run) + 1);  // later, where the volume is waited for
    if (needs_loads(run, now))
      hungry.push_back(&run);
    else
      run.refilling = false;  // filled exactly: from now on when half empty, as ever
  }
  feed(hungry, now, free_bytes, out);
  for (uint32_t slot : live_slots_)
    if (waits_for_probes(runs_[slot], now)) due_at(runs_[slot].last_activity + kProbeQuietNs);
  std::stable_sort(out.loads.begin(), out.loads.end(),
                   [](const PlannedLoad& a, const PlannedLoad& b) { return a.priority < b.priority; });
  attention_ = out.loads.size() >= options_.max_loads_per_plan;
  // Given up twice: cancelled once. Given up and expected again in the meantime: stays.
  std::sort(cancels_.begin(), cancels_.end());
  cancels_.erase(std::unique(cancels_.begin(), cancels_.end()), cancels_.end());
  std::erase_if(cancels_,
                [&](ObjectId id) { return accounting_.state(id) != PrefetchState::kPlanned || about_to_be_used(id); });
  out.cancels.swap(cancels_);
  return out;
}

}  // namespace kvcachefs
