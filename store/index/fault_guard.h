// Runs code that may touch damaged mapped memory. LMDB trusts its file: a flipped page makes it read wild addresses, a
// file cut short makes a read SIGBUS, and its assertions abort. Inside run_guarded() each of these ends the guarded
// code only.
//
// Contract for the guarded code: it must not own anything (no destructor runs when it is left by a fault), take no lock
// that others wait for, and not nest. What it called into must never be used again after a fault.
#pragma once

#include <type_traits>

namespace kvcachefs::fault_guard {

// Installs the handlers of SIGSEGV and SIGBUS, once per process; handlers found there are called for faults outside of
// guarded code, so a sanitizer or a crash reporter goes on working. Thread-safe.
void install();

// For callbacks out of the guarded code that must not return (LMDB's assertion handler): leaves as a fault would.
// Returns if the thread is in no guarded code.
void leave_as_fault();

namespace internal {
bool run(void (*code)(void*), void* argument);
}  // namespace internal

// False if `code` was left by a fault; what it wrote to variables of the caller is then unspecified.
template <class Code>
[[nodiscard]] bool run_guarded(Code&& code) {
  // Through a function pointer, so that nothing the caller keeps in registers lives across the jump.
  return internal::run([](void* argument) { (*static_cast<std::remove_reference_t<Code>*>(argument))(); }, &code);
}

}  // namespace kvcachefs::fault_guard
