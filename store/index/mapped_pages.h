// Controls which pages of a mapped file are in memory. Each call looks the mapping up, for LMDB does not tell its address.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "store/base/mutex.h"

namespace kvcachefs {

// Reads the first `most_bytes` into memory and locks them there. Blocks on the disk; best effort (RLIMIT_MEMLOCK).
void lock_mapped_pages(const std::string& path, uint64_t most_bytes);
// If this process has more than `most_bytes` of files in its memory, removes the pages behind the first `kept_bytes` from it. They stay in the page
// cache for as long as the kernel has room for them, and are mapped again when they are read.
void let_go_of_mapped_pages(const std::string& path, uint64_t kept_bytes, uint64_t most_bytes);
// While it is held no call lets go of pages. A thread that unmaps a file holds it, for else its addresses could be another's by the time of the call.
std::unique_lock<Mutex<LockRank::kInner>> hold_mapped_pages();

}  // namespace kvcachefs
