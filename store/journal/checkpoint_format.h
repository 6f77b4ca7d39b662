// Inside the journal room: the header and the payloads of a checkpoint (store/FORMAT.md, "Checkpoint").
#pragma once

#include <cstdint>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/journal/frame.h"
#include "store/journal/journal.h"

namespace kvcachefs {

struct CheckpointFileHeader {
  FileIdentity identity;
  uint64_t seq = 0;
  CheckpointHeader header;
};
Bytes encode_checkpoint_header(const CheckpointFileHeader& header);
struct DecodedCheckpointHeader {
  CheckpointFileHeader header;
  size_t size_bytes = 0;
};
Result<DecodedCheckpointHeader> decode_checkpoint_header(ByteSpan start);

// The first byte of a payload.
enum class CheckpointFrame : uint8_t { kRecords = 1, kFooter = 2 };

struct CheckpointFooter {
  uint64_t records = 0;
  uint64_t frames = 0;  // of records
  uint64_t digest = 0;  // XXH3-64 of the concatenated payloads
};
Bytes encode_checkpoint_footer(const CheckpointFooter& footer);
Result<CheckpointFooter> decode_checkpoint_footer(ByteSpan payload);

}  // namespace kvcachefs
