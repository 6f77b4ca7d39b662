// Constants shared by the planner's source files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcachefs {

inline constexpr int64_t kStoppedMinNs = 500'000'000;  // a run without activity counts as stopped after this time, or later
inline constexpr size_t kMinExpected = 32;  // enough to recognise other threads of a pool of readers
inline constexpr size_t kMaxTables = 4096;

}  // namespace kvcachefs
