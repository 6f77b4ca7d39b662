// Restarts the daemon of a kvcachefs between two phases, with a command given by the user.
#pragma once

#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// Runs `command` in a shell with KVCACHEFS_BENCH_DIR and KVCACHEFS_BENCH_MOUNT in its environment, and waits for it.
// `directory` must then be a kvcachefs again. Does nothing for a directory that is not on a kvcachefs.
Status restart_mount(const std::string& command, const std::string& directory);

}  // namespace kvcachefs
