// Replays a trace on directories and reports the results of each.
#pragma once

#include "store/base/result.h"
#include "tools/load/report.h"
#include "tools/load/request_run.h"
#include "tools/load/target.h"
#include "tools/replay/chunk_plan.h"
#include "tools/replay/trace.h"

namespace kvcachefs {

struct ReplaySettings {
  TargetNames targets;  // with nodes, there are as many engines as a column has directories
  unsigned rounds = 1;
  size_t requests = 0;  // of the trace; 0: all
  Deal deal = Deal::kRoundRobin;
  EngineOptions engine;
  RunOptions run;  // engines: set by run_replay
  uint64_t seed = 0;
  bool keep_caches = false;  // drop nothing before a round
};

// Each round starts with empty directories. The report's columns are those of settings.targets, and one more,
// "recompute-only": the cost of the same requests without any cache.
Status run_replay(const ReplaySettings& settings, const Trace& trace, Report& report);

}  // namespace kvcachefs
