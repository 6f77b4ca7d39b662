// Surviving a page fault that the file system cannot serve. A store to a mapping of a full disk, or a load from one
// that cannot be read, is a SIGBUS: an engine dies of it, a benchmark says what happened.
#pragma once

#include <cstddef>
#include <functional>

namespace kvcachefs {

// Runs `access`; false when a page fault in it failed. What it had on its stack is not destroyed then, so it must own
// nothing. Any thread; not nested. A SIGBUS outside of such a call ends the process as it always does.
bool survives_bus_error(const std::function<void()>& access);

}  // namespace kvcachefs
