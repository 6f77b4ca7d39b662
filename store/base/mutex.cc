#include "store/base/mutex.h"

#if defined(KVCACHEFS_CHECK_LOCKS)
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace kvcachefs {
namespace {

constexpr size_t kMostHeld = 32;

struct Held {
  LockRank rank{};
  const void* mutex = nullptr;
};

struct HeldLocks {
  std::array<Held, kMostHeld> locks;
  size_t count = 0;
  size_t first = 0;  // earlier entries are locks of another machine
};

thread_local HeldLocks held;

[[noreturn]] void fail_order(const char* what, LockRank rank, const void* mutex) {
  std::fprintf(stderr, "lock order: %s rank %d (%p); held:", what, static_cast<int>(rank), mutex);
  for (size_t i = 0; i < held.count; ++i)
    std::fprintf(stderr, " rank %d (%p)", static_cast<int>(held.locks[i].rank), held.locks[i].mutex);
  std::fprintf(stderr, "; LockRank in store/base/mutex.h has the order\n");
  std::abort();
}

}  // namespace

void check_lock_order(LockRank rank, const void* mutex) {
  for (size_t i = held.first; i < held.count; ++i)
    if (held.locks[i].rank >= rank) fail_order("taking", rank, mutex);
}

void note_locked(LockRank rank, const void* mutex) {
  if (held.count == kMostHeld) fail_order("too many locks at", rank, mutex);
  held.locks[held.count++] = {rank, mutex};
}

void note_unlocked(LockRank rank, const void* mutex) {
  for (size_t i = held.count; i-- > 0;) {
    if (held.locks[i].mutex != mutex) continue;
    for (size_t j = i + 1; j < held.count; ++j) held.locks[j - 1] = held.locks[j];
    --held.count;
    return;
  }
  fail_order("releasing, but this thread does not hold,", rank, mutex);
}

AnotherMachine::AnotherMachine() : before_(std::exchange(held.first, held.count)) {}
AnotherMachine::~AnotherMachine() { held.first = before_; }

}  // namespace kvcachefs
#endif
