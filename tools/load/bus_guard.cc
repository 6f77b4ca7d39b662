#include "tools/load/bus_guard.h"

#include <csetjmp>
#include <csignal>
#include <mutex>

namespace kvcachefs {
namespace {

thread_local sigjmp_buf t_landing;
thread_local volatile sig_atomic_t t_guarded = 0;

void on_bus_error(int) {
  if (t_guarded != 0) ::siglongjmp(t_landing, 1);
  ::signal(SIGBUS, SIG_DFL);  // the access is repeated and ends the process
}

void install_handler() {
  struct sigaction action = {};
  action.sa_handler = on_bus_error;
  action.sa_flags = SA_NODEFER;  // siglongjmp leaves the handler for good
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

bool survives_bus_error(const std::function<void()>& access) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  if (sigsetjmp(t_landing, 0) != 0) {
    t_guarded = 0;
    return false;
  }
  t_guarded = 1;
  access();
  t_guarded = 0;
  return true;
}

}  // namespace kvcachefs
