// Decides what to read ahead. Events go in; plans come out: the objects to load next, and the loads to give up. A run begins with
// a burst of probes of present names, or with the first open of an object with a known successor. It follows the chain ahead of
// its readers, and keeps as many bytes ready or in flight as the volume's bandwidth and latency and the readers' speed require.
// Times are nanoseconds of any one monotonic clock.
//
// Contract with the store: every planned load ends in exactly one on_loaded or on_skipped. This holds for cancelled loads too:
// one cancelled in time is reported by on_skipped(kCancelled), one already issued by its result. on_removed is called for every
// object that leaves RAM, however it came there, and once more after on_loaded if nothing of the load is in RAM any more. on_read
// is called for every object whose bytes are read; if the kernel reads them unseen (passthrough), call it at open.
//
// Not thread-safe; calls the successor table and its loader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/base/types.h"
#include "store/chain/accounting.h"
#include "store/chain/announcements.h"
#include "store/chain/chains_summary.h"
#include "store/chain/estimator.h"
#include "store/chain/plan.h"
#include "store/chain/read_run.h"
#include "store/chain/stem_trust.h"
#include "store/chain/stream.h"
#include "store/chain/successors.h"

namespace kvcachefs {

class PrefetchPlanner {
 public:
  // The four references must outlive the planner.
  PrefetchPlanner(PlannerOptions options, const StreamTable& streams, SuccessorTable& successors,
                  Announcements& announcements, PrefetchAccounting& accounting);

  // `id` is invalid if the name is absent. `size_bytes` of the object, 0 if unknown.
  void on_probe(StreamId stream, ChainKey key, ObjectId id, uint64_t size_bytes, int64_t now);
  // The stream creates `key`, or renames to it: a lookup just before belongs to that call and tells nothing.
  void on_made(StreamId stream, ChainKey key);
  // `size_bytes` of the object, 0 if unknown.
  void on_open(StreamId stream, ObjectId id, uint64_t size_bytes, int64_t now);
  void on_read(StreamId stream, ObjectId id, uint64_t offset, uint64_t length, int64_t now);
  void on_close(StreamId stream, ObjectId id, int64_t now);
  // Call for demand loads too: they feed the estimator.
  void on_loaded(ObjectId id, uint64_t bytes, int64_t latency_ns, int64_t now);
  void on_skipped(ObjectId id, SkipReason reason);
  void on_removed(ObjectId id);  // left RAM
  void on_deleted(ObjectId id);  // left the store

  // Cheap check whether plan() has something to do now.
  bool wants_plan() const { return attention_ || !cancels_.empty(); }
  // `free_bytes`: memory for prefetch beyond what is already planned.
  Plan plan(int64_t now, uint64_t free_bytes);
  // The time to call plan() although nothing happens (a reader may have stopped), if any.
  std::optional<int64_t> deadline() const;  // never too late; plan() renews it

  // A live run expects it: evict anything else first.
  bool about_to_be_used(ObjectId id) const;

  void set_ahead_max_bytes(uint64_t bytes);
  void set_total_max_bytes(uint64_t bytes) { options_.total_max_bytes = bytes; }
  const VolumeEstimator& volume() const { return volume_; }
  size_t live_runs() const { return live_slots_.size(); }
  std::vector<RunSummary> summaries(size_t most, int64_t now) const;  // the last active first

 private:
  struct RunRef {
    uint32_t slot = 0;
    uint32_t generation = 0;
    bool operator==(const RunRef&) const = default;
  };
  struct Note {
    RunRef expected_by;  // the last run that expected it
    RunRef read_by;
    uint32_t read_at = 0;  // that run's reads at that time
    uint32_t claims = 0;  // number of live runs that expect it
  };
  struct StreamState {
    uint32_t generation = 0;
    BurstClock probes;
    ChainKey last_probe;
    ObjectId last_probe_id;
    uint64_t last_probe_bytes = 0;
    bool last_probe_announced = false;  // it was the first probe to announce that name
    uint32_t present_in_a_row = 0;
    RunRef probe_run;
    RunRef run;
  };
  struct ReadOrder {
    BurstClock clock;
    ObjectId last;
  };

  StreamState& state(StreamId stream);
  Note& note(ObjectId id);
  void forget_notes();
  const Note* find_note(ObjectId id) const;
  ReadRun* live(RunRef ref);
  const ReadRun* live(RunRef ref) const;
  RunRef ref_of(const ReadRun& run) const;

  ReadRun& new_run(LoadReason reason, uint64_t stem, int64_t now);
  void finish(ReadRun& run);
  void drop_expected(ReadRun& run);
  void give_up(std::vector<ObjectId>& dropped);
  void release_claim(ObjectId id);
  void due_at(int64_t when);
  void move_stream(StreamState& stream, ReadRun& run, int64_t now);
  void leave_run(StreamState& stream, int64_t now);
  bool expired(const ReadRun& run, int64_t now) const;
  bool waits_for_volume(const ReadRun& run) const;
  void note_load_end(int64_t now);
  int64_t expiry(const ReadRun& run) const;

  bool note_probe_order(StreamState& stream, bool continues, ChainKey key, ObjectId id, int64_t now);
  void extend_probe_run(StreamState& stream, uint64_t stem, ObjectId id, uint64_t size_bytes, int64_t now);
  ReadRun* run_expecting(const StreamState& stream, ObjectId id);
  void join(ReadRun& run, ObjectId id, ObjectId before, uint64_t size_bytes, int64_t now);
  bool is_retry(const ReadRun& run, const Note& note) const;
  ReadRun& follow_or_begin(StreamState& stream, uint64_t stem, ObjectId id, ObjectId before, int64_t now);
  void restart(ReadRun& run, ObjectId id, int64_t now);
  void begin_siblings(ObjectId id, uint64_t stem, int64_t now);
  void mark_read(ReadRun& run, ObjectId id, uint64_t size_bytes, int64_t now);
  ObjectId last_read_before(uint64_t stem, StreamId stream, ObjectId id, int64_t now);

  bool expect(ReadRun& run, ObjectId id, uint64_t size_bytes = 0);
  void book(ReadRun& run, ObjectId id, uint64_t size_bytes);
  void note_size(uint64_t stem, uint64_t size_bytes);
  uint64_t most_bookable() const { return std::min(options_.ahead_max_bytes, options_.total_max_bytes); }
  uint64_t bookable(const ReadRun& run, uint64_t bytes) const;
  bool extend(ReadRun& run);
  uint64_t window_bytes(const ReadRun& run) const;
  RunSummary summary_of(const ReadRun& run, int64_t now) const;
  uint64_t first_window(const ReadRun& run) const;
  void adapt_windows(bool reader_waits, int64_t now);
  uint64_t chunk_estimate(const ReadRun& run) const;
  bool takes_a_second(const ReadRun& run, uint64_t next_bytes, uint64_t window) const;
  double caution(const ReadRun& run) const;
  bool needs_loads(const ReadRun& run, int64_t now) const;
  bool waits_for_probes(const ReadRun& run, int64_t now) const;
  bool plan_one(ReadRun& run, int64_t now, uint64_t& free_bytes, uint64_t& room_bytes, Plan& out);
  uint64_t room_bytes() const;
  void feed(std::vector<ReadRun*>& hungry, int64_t now, uint64_t free_bytes, Plan& out);
  void judge(ReadRun& run);
  void judge_chain_end(ReadRun& run, bool reached);
  bool worth_reading(ReadRun& run, ObjectId next);

  PlannerOptions options_;
  const StreamTable& streams_;
  SuccessorTable& successors_;
  Announcements& announcements_;
  PrefetchAccounting& accounting_;
  VolumeEstimator volume_;
  CohortTracker read_cohorts_;
  std::vector<StreamState> states_;
  std::vector<ReadRun> runs_;
  std::vector<uint32_t> live_slots_;
  std::vector<uint32_t> free_slots_;
  uint32_t next_generation_ = 1;
  std::unordered_map<ObjectId, Note> notes_;
  std::deque<ObjectId> note_order_;
  std::unordered_map<uint64_t, ReadOrder> read_orders_;  // by cohort
  StemTrust trust_;
  uint64_t turn_ = 0;  // rotates among the runs that want loads
  int widened_ = 0;  // how often the windows of all runs were doubled
  int64_t widened_at_ = 0;
  int64_t load_ended_at_ = INT64_MIN;  // the last load of any run, or on demand
  std::vector<ObjectId> cancels_;
  std::vector<ObjectId> scratch_;
  std::unordered_map<uint64_t, uint64_t> stem_chunk_bytes_;  // mean size, by stem
  uint64_t typical_chunk_bytes_ = uint64_t{1} << 20;         // over all stems
  bool attention_ = false;
  int64_t next_due_ = INT64_MAX;
};

}  // namespace kvcachefs
