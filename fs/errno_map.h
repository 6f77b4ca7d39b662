// The one place where an errno is chosen.
#pragma once

#include "store/base/result.h"

namespace kvcachefs {

// Positive errno for the kernel. Passes on the volume's own errno where it tells more than EIO would (EDQUOT, EROFS).
int errno_of(const Error& error);
// The same for an error that a client gets now. EIO tells a client nothing, so the log tells why.
int errno_to_answer(const Error& error);

}  // namespace kvcachefs
