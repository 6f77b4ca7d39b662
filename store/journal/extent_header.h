// The first block of a pack extent, which tells its owner. Bodies follow from kPackHeaderBytes on. (Solo and raw extents have no
// header: their bytes are passed through to readers from offset 0.)
#pragma once

#include <cstdint>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/base/units.h"
#include "store/journal/journal.h"

namespace kvcachefs {

inline constexpr size_t kPackHeaderBytes = kBlockBytes;

struct PackHeader {
  FileIdentity identity;
  uint64_t seq = 0;  // of the extent
};

Bytes encode_pack_header(const PackHeader& header);
// `block`: the first block of the file.
Result<PackHeader> decode_pack_header(ByteSpan block);
// Like decode_pack_header(); also checks that the header is that of extent `seq` of `identity`.
Status check_pack_header(ByteSpan block, const FileIdentity& identity, uint64_t seq);

}  // namespace kvcachefs
