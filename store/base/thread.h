// Starts threads with a name that `top -H` and a debugger show.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "store/base/result.h"

namespace kvcachefs {

// What to do after a thread or process could not be started. For messages.
inline constexpr std::string_view kRaiseProcessLimit =
    "A mount has some 35 threads and those of its option `threads`: raise the limit on processes (ulimit -u, TasksMax= of the unit, pids.max of the "
    "control group, kernel.threads-max), or, where there is one, the limit on the process's memory (ulimit -d, LimitDATA=)";

// For tests: this process starts so many more threads (INT64_MAX: any number), then starting one fails.
void let_start_threads(int64_t count);

// Used by start_thread().
bool may_start_thread();
std::unexpected<Error> thread_refused(const char* name, int sys_errno);

// `name` has at most 15 characters. Fails where a limit on processes or on memory is reached; the message says what to raise.
template <typename Loop>
Result<std::thread> start_thread(const char* name, Loop loop) {
  if (!may_start_thread()) return thread_refused(name, EAGAIN);
  try {
    return std::thread([name, loop = std::move(loop)]() mutable {
      pthread_setname_np(pthread_self(), name);
      loop();
    });
  } catch (const std::system_error& problem) {
    return thread_refused(name, problem.code().value());
  } catch (const std::bad_alloc&) {
    return thread_refused(name, ENOMEM);
  }
}

}  // namespace kvcachefs
