// `kvcachefs simulate`: compares eviction policies on recorded traces.
#pragma once

#include "tools/load/subcommand.h"

namespace kvcachefs {

Subcommand add_simulate_command(CLI::App& parent);

}  // namespace kvcachefs
