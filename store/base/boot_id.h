// Which start of this machine's kernel this is.
#pragma once

#include <string>

namespace kvcachefs {

// What was written since then survives a crash of the daemon without a sync. Empty where the kernel does not tell.
std::string boot_id();

}  // namespace kvcachefs
