// The number that the kernel passes back for an open file: the store's handle, and facts of the open that need no call of the store.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <cstdint>

#include "store/store.h"

namespace kvcachefs {

// fi->fh is the store's handle. Its lowest bits are flags: the open was passed through; its closes send no FLUSH (FOPEN_NOFLUSH); the kernel
// itself sends FSYNC after a write that must be synced (page-cache mode); the file was opened with O_SYNC or O_DSYNC.
inline constexpr uint64_t kPassedThroughBit = 1, kUnseenCloseBit = 2, kKernelSyncsBit = 4, kSyncedBit = 8;
inline constexpr uint64_t kHandleBits = kPassedThroughBit | kUnseenCloseBit | kKernelSyncsBit | kSyncedBit;
static_assert(kHandleBits < __STDCPP_DEFAULT_NEW_ALIGNMENT__);  // these bits are 0 in pointers from operator new
inline Handle* handle_of(const fuse_file_info* file) { return reinterpret_cast<Handle*>(file->fh & ~kHandleBits); }

}  // namespace kvcachefs
