// How the descriptors that this process may have open are shared out, so that none of what keeps some for long leaves nothing to the others: to
// reads, to the journal, to directories that are synced or listed.
#pragma once

#include <cstdint>

namespace kvcachefs {

struct DescriptorShares {
  uint64_t memory_files = 0;
  uint64_t made_extents = 0;  // that were written, or are empty and kept for later, and are open
  uint64_t open_extents = 0;  // kept for the next reader
};

uint64_t descriptor_limit();  // now; the largest number: there is none
DescriptorShares descriptor_shares(uint64_t limit = descriptor_limit());

}  // namespace kvcachefs
