// Locks of a PosixVolume: open file description locks, released only through the descriptor that took them (a
// classic fcntl lock is lost when any descriptor of the file is closed anywhere in the process).
#pragma once

#include <memory>
#include <string>

#include "store/base/result.h"
#include "store/base/unique_fd.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// `fd` is open for reading and writing; `path` is for messages.
Result<std::unique_ptr<VolumeLock>> take_posix_lock(UniqueFd fd, const std::string& path);

}  // namespace kvcachefs
