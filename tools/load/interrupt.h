// SIGINT and SIGTERM as a flag, so that a run can stop between two operations and remove what it wrote.
#pragma once

#include "store/base/result.h"

namespace kvcachefs {

// Handlers are in place while it lives; the old ones come back after. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

bool interrupted();
// kCanceled once a signal came.
Status check_interrupt();

}  // namespace kvcachefs
