// Replays a trace on directories and reports what each was worth.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/report.h"
#include "tools/load/request_run.h"
#include "tools/replay/trace.h"

namespace kvcachefs {

struct ReplaySettings {
  std::vector<std::string> dirs;
  unsigned rounds = 1;
  size_t requests = 0;  // of the trace; 0: all
  EngineOptions engine;
  RunOptions run;
  uint64_t seed = 0;
  bool keep_caches = false;  // drop nothing before a round
};

// Each round starts every directory empty. The report's columns are settings.dirs; one more, "recompute-only", tells
// what the same requests cost without any cache.
Status run_replay(const ReplaySettings& settings, const Trace& trace, Report& report);

}  // namespace kvcachefs
