// `kvcachefs replay`: the command line of the trace replay.
#pragma once

#include "tools/load/subcommand.h"

namespace kvcachefs {

// Registers `replay` under `parent`, which owns it. The returned `run` replays and prints; see tools/bench/README.md.
Subcommand add_replay_command(CLI::App& parent);

}  // namespace kvcachefs
