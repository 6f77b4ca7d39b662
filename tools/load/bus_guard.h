// Survives a page fault that the file system cannot serve. A store to a mapping on a full disk, or a load that
// cannot be read, raises SIGBUS: an engine dies of it; a benchmark reports it.
#pragma once

#include <cstddef>
#include <functional>

namespace kvcachefs {

// Runs `access`; returns false if a page fault in it failed. Objects on its stack are then not destroyed, so it must own
// nothing. Any thread; not nested. A SIGBUS outside of such a call ends the process as usual.
bool survives_bus_error(const std::function<void()>& access);

}  // namespace kvcachefs
