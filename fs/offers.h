// Features of this machine that are known before the kernel is asked: from the libfuse built against, the kernel's
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

// Whether requests are to come over io_uring; if not, the reason and the remedy.
struct RingChoice {
  bool use = false;
  bool missed = false;  // wanted, and not to be had
  std::string state;
};
using LibraryVersion = std::pair<int, int>;
RingChoice choose_ring(Switch wanted, char parameter, LibraryVersion library);
// In 3.18 replies from other threads than the ring's, which ours are while bodies are loaded, can corrupt a ring: a client
// hangs then (libfuse issue 1443; mended in what follows 3.18).
bool ring_may_hang(LibraryVersion library);

}  // namespace kvcachefs
