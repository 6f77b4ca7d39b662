// A piece of a body, and where its bytes are.
#pragma once

#include <cstdint>

#include "store/memory/pool.h"

namespace kvcachefs {

// One kUnitBytes piece of a body. Without a block its bytes are those of the spill file (if `spilled`), else of the base
// body (as far as that is valid), else zeros. A block may be smaller than the unit: what lies beyond is zeros.
//
// A block that somebody else holds too (a seal in progress, a reply on its way) is never written: writers clone it
// first; nor one of a memory file that was passed through. So a snapshot of a body is a copy of its block pointers.
struct Unit {
  BlockPtr block;
  bool dirty = false;    // the block is newer than base and spill file; changed by set_dirty()
  bool spilled = false;  // the spill file holds the unit's bytes
  uint32_t spill_bytes = 0;        // of the unit in the spill file; what follows is zeros
  uint64_t spill_checksum = 0;     // of spill_bytes

  // Of the body itself, not of a snapshot: the pool sums up what blocks hold. The lock of the body is held.
  void set_dirty(bool value) {
    dirty = value;
    if (block) block->set_holds(dirty ? Block::Holds::kDirty : Block::Holds::kClean);
  }
};

}  // namespace kvcachefs
