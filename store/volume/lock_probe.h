// Whether somebody holds a lock of the volume, told without taking it: whoever is about to take it is not kept from that.
#pragma once

#include <string>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// False: nobody does, or there is no such file. On a simulated volume, which has no descriptors, the lock is taken for a moment. Blocks on the
// volume.
Result<bool> is_locked(Volume& volume, const std::string& path);

}  // namespace kvcachefs
