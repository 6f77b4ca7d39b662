// Private to the files that start the store.
#pragma once

#include <cstddef>
#include <string>

namespace kvcachefs {

inline constexpr size_t kMaxOpenExtents = 512;

// Identifies one start of this machine's kernel: bodies written since survive a crash of the daemon without a sync.
std::string boot_id();

}  // namespace kvcachefs
