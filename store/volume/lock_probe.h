// Tells whether a lock of the volume is held without taking it, so that it does not get in the way of a process that is about to take it.
#pragma once

#include <string>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// False: nobody holds it, or there is no such file. On a simulated volume, which has no descriptors, it takes the lock for a moment. Blocks on the
// volume.
Result<bool> is_locked(Volume& volume, const std::string& path);

}  // namespace kvcachefs
