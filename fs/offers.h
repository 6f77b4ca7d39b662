// Features of this machine that can be told before the kernel is asked: from the libfuse built against, the kernel's
// release and parameters, and the user.
#pragma once

#include <string>
#include <utility>

#include "fs/options.h"

namespace kvcachefs {

// Whether reads may be passed through. The kernel can still refuse.
bool may_pass_through(const MountOptions& options);

// The kernel's parameter fuse.enable_uring: 'Y' or 'N'; '-' where it has none.
char ring_parameter();

// Whether requests should come over io_uring; if not, the reason and the remedy.
struct RingChoice {
  bool use = false;
  bool missed = false;  // wanted, but not available
  std::string state;
};
using LibraryVersion = std::pair<int, int>;
RingChoice choose_ring(Switch wanted, char parameter, LibraryVersion library);
// libfuse 3.18: a reply from a thread other than the ring's can corrupt the ring, and a client then hangs (libfuse issue 1443; fixed in
// the versions after 3.18). This daemon replies from other threads when it loads bodies.
bool ring_may_hang(LibraryVersion library);

}  // namespace kvcachefs
