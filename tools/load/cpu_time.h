// CPU time of this thread and of other processes, in seconds.
#pragma once

#include <sys/types.h>

#include <optional>

namespace kvcachefs {

double monotonic_s();
double thread_cpu_s();
// All threads of a process, user and system; nothing when it is gone.
std::optional<double> process_cpu_s(pid_t pid);

}  // namespace kvcachefs
