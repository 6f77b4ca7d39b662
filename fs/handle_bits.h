// What the kernel hands back of an open file: the store's handle, and what is to be known of the open without asking the store.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <cstdint>

#include "store/store.h"

namespace kvcachefs {

// fi->fh is the store's handle. Its lowest bit says that the open was passed through, the next that its closes are not told
// (FOPEN_NOFLUSH), the third that the kernel sends FSYNC itself after a write that is to be synced (page-cache mode), the fourth that it
// was opened with O_SYNC or O_DSYNC.
inline constexpr uint64_t kPassedThroughBit = 1, kUnseenCloseBit = 2, kKernelSyncsBit = 4, kSyncedBit = 8;
inline constexpr uint64_t kHandleBits = kPassedThroughBit | kUnseenCloseBit | kKernelSyncsBit | kSyncedBit;
static_assert(kHandleBits < __STDCPP_DEFAULT_NEW_ALIGNMENT__);  // what operator new gives has these bits free
inline Handle* handle_of(const fuse_file_info* file) { return reinterpret_cast<Handle*>(file->fh & ~kHandleBits); }

}  // namespace kvcachefs
