// Chooses, once for each request, between the operations of the store and those of the control nodes (`.kvcachefs/`).
// No handler has to ask which of the two a nodeid is.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

namespace kvcachefs {

fuse_lowlevel_ops store_operations();
fuse_lowlevel_ops control_operations();

// The table for libfuse, without `init`. Each entry looks at the nodeids and names of its request and calls the handler of the
// store or the one of the control nodes. Operations that are the same for both are the store's.
fuse_lowlevel_ops dispatching_operations();

}  // namespace kvcachefs
