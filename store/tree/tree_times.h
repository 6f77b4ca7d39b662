// Times within which clients and the kernel go by what was.
#pragma once

#include <cstdint>

namespace kvcachefs {

// A temporary name closed less than this ago is about to be renamed by its writer.
inline constexpr int64_t kAboutToRenameNs = 10'000'000'000;
// For so long after a rename a truncating open is made to look the name up again: the kernel may open by what it knew before.
inline constexpr int64_t kMovedNs = 10'000'000'000;

}  // namespace kvcachefs
