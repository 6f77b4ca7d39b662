// What of a file that is mapped here is in memory. Each call looks the mapping up, for LMDB does not tell where its own is; nobody unmaps it meanwhile.
#pragma once

#include <cstdint>
#include <string>

namespace kvcachefs {

// Reads the first `most_bytes` into memory and locks what is read of them there. Blocks on the disk; best effort (RLIMIT_MEMLOCK).
void lock_mapped_pages(const std::string& path, uint64_t most_bytes);
// Where this process has more than `most_bytes` of files in its memory: what is mapped behind the first `kept_bytes` leaves it. It stays in the page
// cache, for as long as the kernel has room for it, and is mapped again when it is read.
void let_go_of_mapped_pages(const std::string& path, uint64_t kept_bytes, uint64_t most_bytes);

}  // namespace kvcachefs
