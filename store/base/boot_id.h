// Identifies the current boot of this machine's kernel.
#pragma once

#include <string>

namespace kvcachefs {

// Data written since this boot survives a crash of the daemon without a sync. Empty if the kernel does not tell.
std::string boot_id();

}  // namespace kvcachefs
