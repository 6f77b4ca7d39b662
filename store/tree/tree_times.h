// Private to the room.
#pragma once

#include <cstdint>

namespace kvcachefs {

// A temporary name closed less than this ago is about to be renamed by its writer.
inline constexpr int64_t kAboutToRenameNs = 10'000'000'000;

}  // namespace kvcachefs
