// Shares out the file descriptors of this process, so that no user that keeps some for long leaves none to the others: to
// reads, to the journal, to directories that are synced or listed.
#pragma once

#include <cstdint>

namespace kvcachefs {

struct DescriptorShares {
  uint64_t memory_files = 0;
  uint64_t made_extents = 0;  // open extents that were written, or are empty spares
  uint64_t open_extents = 0;  // kept for the next reader
};

uint64_t descriptor_limit();  // the present limit; UINT64_MAX: there is none
DescriptorShares descriptor_shares(uint64_t limit = descriptor_limit());

}  // namespace kvcachefs
