// The agreement between the kernel and this driver when a mount begins.
#pragma once

struct fuse_conn_info;

namespace kvcachefs {

inline constexpr unsigned kReadAheadBytes = 4 << 20;  // of buffered and mmap readers; the kernel's default of 128 KiB is far too little

// The handler of INIT, and the only place where capabilities are chosen. `userdata` is the Driver.
void negotiate(void* userdata, fuse_conn_info* connection);

}  // namespace kvcachefs
