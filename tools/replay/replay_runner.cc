#include "tools/replay/replay_runner.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "store/base/units.h"
#include "tools/load/cold_start.h"
#include "tools/load/interrupt.h"
#include "tools/load/outcome_report.h"
#include "tools/load/progress.h"
#include "tools/replay/prefetch_report.h"
#include "tools/replay/volume_io.h"

namespace kvcachefs {
namespace {

constexpr const char* kWorkload = "replay";

std::string scenario(const ReplaySettings& settings) {
  const RunOptions& run = settings.run;
  return fmt::format("{}tokens-of-{}/{}/{}/{}workers", settings.engine.chunk_tokens,
                     format_size(settings.engine.chunk_bytes), access_style_name(settings.engine.style),
                     run.open_loop ? fmt::format("open-{:g}x", run.time_scale) : "closed",
                     run.engines == 1 ? fmt::format("{}", run.workers) : fmt::format("{}x{}", run.engines, run.workers)) +
         (run.engines == 1 ? "" : settings.deal == Deal::kSession ? "/by-session" : "/round-robin");
}

PlanOptions plan_options(const ReplaySettings& settings) {
  return {.chunk_tokens = settings.engine.chunk_tokens,
          .limit = settings.requests,
          .engines = settings.run.engines,
          .deal = settings.deal};
}

class Replay {
 public:
  Replay(const ReplaySettings& settings, const Trace& trace, Report& report)
      : settings_(settings),
        trace_(trace),
        report_(report),
        scene_(scenario(settings)),
        bytes_(file_bytes(settings.engine.style, settings.engine.chunk_bytes)) {}

  Status round(const Target& target, unsigned number, Progress& progress);

 private:
  const ReplaySettings& settings_;
  const Trace& trace_;
  Report& report_;
  std::string scene_;
  uint64_t bytes_;
};

Status Replay::round(const Target& target, unsigned number, Progress& progress) {
  const auto requests = engine_requests(trace_, plan_options(settings_), settings_.seed + number);
  KVC_ASSIGN(const std::vector<std::string> roots, target.make_dirs(std::to_string(number)));
  KVC_TRY(cold_start(roots, settings_.keep_caches, report_));
  progress.show(fmt::format("round {} {}", number + 1, target.name()));
  const VolumeIo before = read_volume_io(roots);
  KVC_ASSIGN(const RunResult result,
             run_requests(roots, settings_.engine, settings_.run, requests, [&] { progress.advance(); }));
  KVC_TRY(drain_writes(roots, report_));
  const VolumeIo after = read_volume_io(roots);
  const size_t dir = target.index();
  const unsigned engines = settings_.run.engines;
  report_outcomes(report_, kWorkload, scene_, dir, result.outcomes, bytes_);
  if (engines > 1) report_engines(report_, kWorkload, scene_, dir, requests, result.outcomes, engines, bytes_);
  report_.add({kWorkload, scene_, "wall_time", "s"}, dir, result.cost.wall_s);
  constexpr double kGiBDouble = static_cast<double>(kGiB);
  report_.add({kWorkload, scene_, "volume_read", "GiB"}, dir, (after.read_bytes - before.read_bytes) / kGiBDouble);
  report_.add({kWorkload, scene_, "volume_written", "GiB"}, dir,
              (after.written_bytes - before.written_bytes) / kGiBDouble);
  uint64_t hits = 0, stored = 0;
  for (const RequestOutcome& one : result.outcomes) {
    hits += one.hit_chunks;
    stored += one.stored_chunks;
  }
  report_prefetch(report_, {kWorkload, scene_, "", "%"}, dir, result.cost.counters, static_cast<double>(hits * bytes_));
  add_costs(report_, {kWorkload, scene_, "", ""}, dir, "", result.cost, static_cast<double>((hits + stored) * bytes_));
  return target.remove_dirs(roots);
}

}  // namespace

Status run_replay(const ReplaySettings& given, const Trace& trace, Report& report) {
  ReplaySettings settings = given;
  settings.run.engines = static_cast<unsigned>(settings.targets.nodes_per_column());
  KVC_TRY(check_chunk_tokens(settings.engine.chunk_tokens, trace.block_tokens));
  KVC_TRY(check_deal(settings.deal, trace));
  KVC_ASSIGN(std::vector<Target> targets, open_targets(settings.targets, "replay"));
  const auto requests = engine_requests(trace, plan_options(settings), settings.seed);
  const PlanTotals totals = plan_totals(requests);
  const uint64_t bytes = file_bytes(settings.engine.style, settings.engine.chunk_bytes);
  report.note(fmt::format(
      "{} requests, {} tokens, {} chunks, {} of them distinct: {} on the volume if nothing is evicted", requests.size(),
      totals.input_tokens, totals.chunks, totals.distinct_chunks,
      format_size(totals.distinct_chunks * bytes)));
  // Runs a round on one column at a time and then removes what it wrote.
  for (const Target& target : targets) {
    const uint64_t needed = totals.distinct_chunks * (bytes + kSidecarBytes);
    Status fits = check_space({&target, 1}, needed, "free some, or lower --requests or --bytes-per-token");
    if (!fits && fits.error().code == Code::kNoSpace && target.evicts())
      report.note(fmt::format("{}: not all of it fits: the mount evicts", target.name()));
    else
      KVC_TRY(std::move(fits));
    if (const auto shared = target.shared_volume_note()) report.note(*shared);
  }
  if (settings.run.engines > 1 && !settings.run.open_loop) {
    report.note("closed loop: prefill takes no time, so that a node is asked for what another wrote sooner than by real "
                "engines (--open-loop)");
  }
  Replay replay(settings, trace, report);
  Progress progress(requests.size() * settings.rounds * targets.size());
  for (unsigned round = 0; round < settings.rounds; ++round) {
    for (size_t i = 0; i < targets.size(); ++i) {
      KVC_TRY(check_interrupt());
      const Target& target = targets[(i + round) % targets.size()];
      KVC_TRY(target.blamed(replay.round(target, round, progress)));
    }
  }
  const auto recomputed = recompute_only(settings.engine, settings.run, requests);
  report_outcomes(report, kWorkload, scenario(settings), report.add_column("recompute-only"), recomputed, 0);
  return {};
}

}  // namespace kvcachefs
