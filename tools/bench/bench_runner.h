// Runs cases on directories: round by round, in each the directories one after another, their order turning.
#pragma once

#include <memory>
#include <vector>

#include "store/base/result.h"
#include "tools/bench/bench_settings.h"
#include "tools/load/report.h"

namespace kvcachefs {

// Everything that settings name, into `report`, whose columns are those of settings.targets. Nothing is left behind in the
// directories, also on errors. Draws a progress bar if stderr is a terminal.
Status run_bench(const BenchSettings& settings, Report& report);

}  // namespace kvcachefs
