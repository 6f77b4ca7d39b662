// Runs cases on directories: round by round, in each round one directory after another, in rotating order.
#pragma once

#include <memory>
#include <vector>

#include "store/base/result.h"
#include "tools/bench/bench_settings.h"
#include "tools/load/report.h"

namespace kvcachefs {

// Runs everything that `settings` name and fills `report`, whose columns are settings.targets. Leaves nothing behind in the
// directories, also on errors. Draws a progress bar if stderr is a terminal.
Status run_bench(const BenchSettings& settings, Report& report);

}  // namespace kvcachefs
