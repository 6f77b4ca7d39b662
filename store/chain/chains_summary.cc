#include "store/chain/chains_summary.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "store/chain/chains.h"

namespace kvcachefs {

namespace {

const char* name_of(LoadReason reason) {
  switch (reason) {
    case LoadReason::kProbe: return "probe";
    case LoadReason::kSibling: return "sibling";
    case LoadReason::kSuccessor: break;
  }
  return "successor";
}

double milliseconds(int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace

RunSummary PrefetchPlanner::summary_of(const ReadRun& run, int64_t now) const {
  RunSummary summary;
  summary.reason = run.reason;
  summary.readers = run.streams;
  summary.arrivals = run.arrivals;
  summary.next = run.next_expected();
  summary.expected_objects = run.ahead_count();
  summary.expected_bytes = run.ahead_bytes();
  summary.window_bytes = window_bytes(run);
  summary.planned_bytes = run.outstanding_bytes();
  summary.idle_ns = std::max<int64_t>(now - run.last_activity, 0);
  run.for_each_planned(RunSummary::kMostLookedAt, [&](ObjectId id, uint64_t bytes) {
    const PrefetchState state = accounting_.state(id);
    const bool under_way = state == PrefetchState::kPlanned || state == PrefetchState::kAwaited;
    if (under_way) summary.in_flight_bytes += bytes;
    else if (state != PrefetchState::kNone) summary.ready_bytes += bytes;
  });
  return summary;
}

std::vector<RunSummary> PrefetchPlanner::summaries(size_t most, int64_t now) const {
  std::vector<uint32_t> slots = live_slots_;
  std::ranges::sort(slots, [&](uint32_t a, uint32_t b) { return runs_[a].last_activity > runs_[b].last_activity; });
  if (slots.size() > most) slots.resize(most);
  std::vector<RunSummary> out;
  for (uint32_t slot : slots) out.push_back(summary_of(runs_[slot], now));
  return out;
}

ChainsSummary Chains::summary(int64_t now) const {
  ChainsSummary summary;
  summary.bandwidth_bytes_per_s = volume().bandwidth_bytes_per_s();
  summary.base_latency_ns = volume().base_latency_ns();
  summary.mean_latency_ns = volume().mean_latency_ns();
  summary.streams = streams_.size();
  summary.most_streams = streams_.capacity();
  summary.announced_names = announcements_.size();
  summary.rows = successors_.rows();
  summary.unsaved_rows = successors_.dirty_count();
  summary.live_runs = live_runs();
  summary.runs = planner_.summaries(ChainsSummary::kMostRuns, now);
  return summary;
}

std::string to_text(const ChainsSummary& summary) {
  std::string text = fmt::format(
      "volume bandwidth_bytes_per_s={:.0f} base_latency_ms={:.3f} mean_latency_ms={:.3f}\n"
      "known streams={} streams_most={} announced_names={} rows={} rows_unsaved={}\n"
      "runs live={} shown={}\n",
      summary.bandwidth_bytes_per_s, milliseconds(summary.base_latency_ns), milliseconds(summary.mean_latency_ns),
      summary.streams, summary.most_streams, summary.announced_names, summary.rows, summary.unsaved_rows, summary.live_runs,
      summary.runs.size());
  for (const RunSummary& run : summary.runs)
    fmt::format_to(std::back_inserter(text),
                   "run by={} readers={} arrivals={} next={} expected={} expected_bytes={} window_bytes={} planned_bytes={} "
                   "ready_bytes={} in_flight_bytes={} idle_ms={:.0f}\n",
                   name_of(run.reason), run.readers, run.arrivals, run.next.value, run.expected_objects, run.expected_bytes,
                   run.window_bytes, run.planned_bytes, run.ready_bytes, run.in_flight_bytes, milliseconds(run.idle_ns));
  return text;
}

}  // namespace kvcachefs
