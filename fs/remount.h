// `mount -o remount`: changes flags of the kernel's mount and live options of the daemon behind it.
#pragma once

#include <string>
#include <vector>

#include "fs/session.h"

namespace kvcachefs {

// Whether one of the lists contains the word `remount`.
bool asks_for_remount(const std::vector<std::string>& lists);

// Changes the mount at `request.mountpoint`, which must be a mount of `request.volume`, as `request.options` say: `ro` and the other
// flags that the kernel keeps, and the options that can be changed while mounted. Refuses other options before it changes anything, unless they
// already have the given value (lines of fstab and of mountinfo contain them). Before `ro` it writes out everything staged. Prints errors to
// stderr and returns the exit status. Root only, because mount(2) is.
int run_remount(const MountRequest& request);

}  // namespace kvcachefs
