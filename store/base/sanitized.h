// For tests: whether AddressSanitizer or ThreadSanitizer is compiled in; g++ and clang signal that differently.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVCACHEFS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVCACHEFS_SANITIZED 1
#endif
#endif
#ifndef KVCACHEFS_SANITIZED
#define KVCACHEFS_SANITIZED 0
#endif

namespace kvcachefs {

inline constexpr bool kSanitized = KVCACHEFS_SANITIZED;

// Number of random histories to run out of `count`: a third under a sanitizer, where each takes ten times as long. The release build, which
// looks for wrong results, runs all of them.
constexpr uint64_t histories_here(uint64_t count) { return kSanitized ? (count + 2) / 3 : count; }

}  // namespace kvcachefs
