// `mount -o remount`: changes flags of the kernel's mount and live options of the daemon behind it.
#pragma once

#include <string>
#include <vector>

#include "fs/session.h"

namespace kvcachefs {

// Whether the word `remount` is among them.
bool asks_for_remount(const std::vector<std::string>& lists);

// Changes the mount at `request.mountpoint`, which must be one of `request.volume`, as `request.options` say: `ro` and the other
// flags that the kernel keeps, and options that can be changed while mounted. Refuses others, before anything is changed, unless they
// are in force as they are given (lines of fstab and of mountinfo have them). Before `ro` everything staged is written out. Returns the
// exit status, errors said on stderr. For root: mount(2) is.
int run_remount(const MountRequest& request);

}  // namespace kvcachefs
