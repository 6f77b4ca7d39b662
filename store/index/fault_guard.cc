#include "store/index/fault_guard.h"

#include <setjmp.h>
#include <signal.h>

#include <mutex>

namespace kvcachefs::fault_guard {

namespace {

// Where the guarded code of this thread was entered; null outside of guarded code.
constinit thread_local sigjmp_buf* current = nullptr;

struct sigaction previous_segv;
struct sigaction previous_bus;

// Async-signal-safe. Passes a fault outside of guarded code to the handler that was installed before ours.
void pass_on(int signal, siginfo_t* info, void* context, const struct sigaction& previous) {
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // Restore the default action: on return the instruction faults again and the process dies of it, core file included.
    struct sigaction by_default = {};
    by_default.sa_handler = SIG_DFL;
    sigaction(signal, &by_default, nullptr);
    // A signal sent by kill() does not repeat by itself.
    if (info == nullptr || info->si_code <= 0) raise(signal);
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // A signal sent by another process is not a fault of the guarded code.
  if (info == nullptr || info->si_code > 0) leave_as_fault();
  pass_on(signal, info, context, signal == SIGBUS ? previous_bus : previous_segv);
}

}  // namespace

void leave_as_fault() {
  sigjmp_buf* place = current;
  if (place != nullptr) siglongjmp(*place, 1);
}

namespace internal {

bool run(void (*code)(void*), void* argument) {
  sigjmp_buf place;
  // The mask is not saved (that is a system call): the handlers run with SA_NODEFER, so it is not changed either.
  if (sigsetjmp(place, 0) != 0) {
    current = nullptr;
    return false;
  }
  current = &place;
  code(argument);
  current = nullptr;
  return true;
}

}  // namespace internal

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGSEGV, &ours, &previous_segv);
    sigaction(SIGBUS, &ours, &previous_bus);
  });
}

}  // namespace kvcachefs::fault_guard
