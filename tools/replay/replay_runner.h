// Replays a trace on directories and reports what each was worth.
#pragma once

#include "store/base/result.h"
#include "tools/load/report.h"
#include "tools/load/request_run.h"
#include "tools/load/target.h"
#include "tools/replay/chunk_plan.h"
#include "tools/replay/trace.h"

namespace kvcachefs {

struct ReplaySettings {
  TargetNames targets;  // with nodes, the requests are dealt to as many engines as a column has directories
  unsigned rounds = 1;
  size_t requests = 0;  // of the trace; 0: all
  Deal deal = Deal::kRoundRobin;
  EngineOptions engine;
  RunOptions run;  // engines: set by run_replay
  uint64_t seed = 0;
  bool keep_caches = false;  // drop nothing before a round
};

// Each round starts every directory empty. The report's columns are those of settings.targets; one more,
// "recompute-only", tells what the same requests cost without any cache.
Status run_replay(const ReplaySettings& settings, const Trace& trace, Report& report);

}  // namespace kvcachefs
