#include "store/base/thread.h"

#include <atomic>
#include <cstring>
#include <limits>

#include <fmt/format.h>

namespace kvcachefs {

namespace {
constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> threads_left{kAnyNumber};
}  // namespace

void let_start_threads(int64_t count) { threads_left = count; }

bool may_start_thread() { return threads_left.load(std::memory_order_relaxed) == kAnyNumber || threads_left.fetch_sub(1) > 0; }

// Not kBusy, as EAGAIN would be: nobody else has to end first.
std::unexpected<Error> thread_refused(const char* name, int sys_errno) {
  return std::unexpected(Error{Code::kIo, sys_errno,
                               fmt::format("thread {} cannot be started: {}. {}", name, std::strerror(sys_errno), kRaiseProcessLimit)});
}

}  // namespace kvcachefs
