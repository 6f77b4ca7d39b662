// Runs code that may touch damaged mapped memory. LMDB trusts its file: a flipped page makes it read wild addresses, a
// truncated file makes a read raise SIGBUS, and its assertions abort. Inside run_guarded() each of these ends only the guarded
// code.
//
// Contract for the guarded code: it must not own anything (a fault leaves it without running destructors), must not take a lock
// that others wait for, and must not nest. Objects of the library that it called must never be used again after a fault.
#pragma once

#include <type_traits>

namespace kvcachefs::fault_guard {

// Installs the handlers of SIGSEGV and SIGBUS, once per process. Faults outside of guarded code go to the handlers that were installed
// before, so a sanitizer or a crash reporter goes on working. Thread-safe.
void install();

// For callbacks from the guarded code that must not return (LMDB's assertion handler): leaves the guarded code as a fault would.
// Returns if the thread is in no guarded code.
void leave_as_fault();

namespace internal {
bool run(void (*code)(void*), void* argument);
}  // namespace internal

// Returns false if a fault ended `code`; the caller's variables that `code` wrote to are then unspecified.
template <class Code>
[[nodiscard]] bool run_guarded(Code&& code) {
  // Through a function pointer, so that nothing the caller keeps in registers lives across the jump.
  return internal::run([](void* argument) { (*static_cast<std::remove_reference_t<Code>*>(argument))(); }, &code);
}

}  // namespace kvcachefs::fault_guard
