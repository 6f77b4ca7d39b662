#include "tools/load/cpu_time.h"

#include <ctime>

namespace kvcachefs {
namespace {
std::optional<double> read_clock(clockid_t clock) {
  timespec now;
  if (::clock_gettime(clock, &now) != 0) return std::nullopt;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
}  // namespace

double monotonic_s() { return read_clock(CLOCK_MONOTONIC).value_or(0); }

double thread_cpu_s() { return read_clock(CLOCK_THREAD_CPUTIME_ID).value_or(0); }

std::optional<double> process_cpu_s(pid_t pid) {
  // The process's own CPU clock counts nanoseconds; /proc/PID/stat would count ticks of 10 ms.
  clockid_t clock;
  if (pid <= 0 || ::clock_getcpuclockid(pid, &clock) != 0) return std::nullopt;
  return read_clock(clock);
}

}  // namespace kvcachefs
