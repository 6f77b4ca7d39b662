// SIGINT and SIGTERM as a flag, so that a run can stop between two operations and remove what it wrote.
#pragma once

#include "store/base/result.h"

namespace kvcachefs {

// Installs the handlers while it lives; the destructor restores the old ones. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

bool interrupted();
// Returns kCanceled once a signal came.
Status check_interrupt();

}  // namespace kvcachefs
