// Restarting the daemon of a kvcachefs between two phases, by a command of the user's.
#pragma once

#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// Runs `command` by the shell with KVCACHEFS_BENCH_DIR and KVCACHEFS_BENCH_MOUNT in its environment and waits for it;
// then `directory` must be a kvcachefs again. Directories that are none are left alone.
Status restart_mount(const std::string& command, const std::string& directory);

}  // namespace kvcachefs
