// Results of the methods of Object, for requests, lanes and the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/api/request_types.h"
#include "store/memory/pool.h"

namespace kvcachefs {

// kAtLeast: a file that is larger by then keeps its size. kAfterFailedWrite: the kernel's own truncation after a failed write, to the size
// that it knows.
enum class Resize : uint8_t { kExactly, kAtLeast, kAfterFailedWrite };

// The answer to a read from RAM, or the statement that some of its units have to be read first.
struct ReadPlan {
  ReadReply reply;           // empty if units are lacking
  size_t length = 0;         // of the read, cut at the end of the body
  size_t wanted_last = 0;    // index behind the last unit of the read
  size_t body_units = 0;
  bool lacks_units = false;
  bool quarantined = false;
};

// Clean blocks that the body gave up; release them without the lock.
struct DroppedBlocks {
  std::vector<BlockPtr> blocks;
  uint64_t bytes = 0;
  bool keeps_some = false;  // there are clean blocks that could not be given up now
};

// A dirty unit on its way to the spill file.
struct SpillPiece {
  size_t index;
  BlockPtr block;
  uint32_t bytes;
  uint64_t checksum = 0;  // of these bytes, set by the writer
};

}  // namespace kvcachefs
