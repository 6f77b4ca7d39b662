#include "tools/load/interrupt.h"

#include <atomic>
#include <csignal>

namespace kvcachefs {
namespace {
std::atomic<bool> g_interrupted{false};  // lock-free: written by a signal handler
struct sigaction g_old_int, g_old_term;

void on_signal(int) { g_interrupted.store(true, std::memory_order_relaxed); }
}  // namespace

InterruptGuard::InterruptGuard() {
  g_interrupted = false;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);  // a second signal ends the process at once
  ::sigaction(SIGINT, &action, &g_old_int);
  ::sigaction(SIGTERM, &action, &g_old_term);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &g_old_int, nullptr);
  ::sigaction(SIGTERM, &g_old_term, nullptr);
}

bool interrupted() { return g_interrupted.load(std::memory_order_relaxed); }

Status check_interrupt() {
  if (interrupted()) return fail(Code::kCanceled, "interrupted");
  return {};
}

}  // namespace kvcachefs
