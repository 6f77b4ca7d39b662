// `kvcachefs bench`: the command line of the benchmark.
#pragma once

#include "tools/load/subcommand.h"

namespace kvcachefs {

// Registers `bench` under `parent`, which owns it. The returned `run` measures and prints; see tools/bench/README.md.
Subcommand add_bench_command(CLI::App& parent);

}  // namespace kvcachefs
