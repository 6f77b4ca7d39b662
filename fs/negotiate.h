// The agreement between the kernel and this driver when a mount begins.
#pragma once

struct fuse_conn_info;

namespace kvcachefs {

inline constexpr unsigned kReadAheadBytes = 4 << 20;  // of buffered and mmap readers; the kernel's 128 KiB is far too little

// The handler of INIT, and the one place where that is decided. `userdata` is the Driver.
void negotiate(void* userdata, fuse_conn_info* connection);

}  // namespace kvcachefs
