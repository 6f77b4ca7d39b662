// A piece of a body, and where its bytes are.
#pragma once

#include <cstdint>

#include "store/memory/pool.h"

namespace kvcachefs {

// One kUnitBytes piece of a body. Without a block its bytes are those of the spill file (if `spilled`), else of the base
// body (as far as that is valid), else zeros. A block may be smaller than the unit: the bytes beyond it are zeros.
//
// A block that has another holder too (a seal in progress, a reply on its way), or that is of a memory file that was passed
// through, is never written: a writer clones it first. So a snapshot of a body is a copy of its block pointers.
struct Unit {
  BlockPtr block;
  bool dirty = false;    // the block is newer than base and spill file; changed by set_dirty()
  bool spilled = false;  // the spill file holds the unit's bytes
  uint32_t spill_bytes = 0;        // bytes of the unit in the spill file; zeros follow
  uint64_t spill_checksum = 0;     // of spill_bytes

  // For units of the body itself, not of a snapshot: the pool sums up what blocks hold. Caller holds the lock of the body.
  void set_dirty(bool value) {
    dirty = value;
    if (block) block->set_holds(dirty ? Block::Holds::kDirty : Block::Holds::kClean);
  }
};

}  // namespace kvcachefs
