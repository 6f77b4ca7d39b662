// Bodies that are too large for memory, or have to make room for others: what was written of them goes to a file of its
// own on the volume before they are finished. Their seal goes on in that file.
#include <algorithm>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/store_impl.h"
#include "store/store_seal.h"

namespace kvcachefs {

bool StoreImpl::spill_one() {
  ObjectPtr largest;
  uint64_t most = 0, coming_back = 0;
  for (const ObjectPtr& object : dirty_.content()) {
    const auto lock = object->lock();
    if (object->raw) continue;
    uint64_t bytes = 0;
    for (const Unit& unit : object->units)
      if (unit.block && unit.dirty) bytes += unit.block->capacity_bytes();
    if (object->sealing) coming_back += bytes;
    if (object->sealing || bytes <= most) continue;
    most = bytes;
    largest = object;
  }
  // Half-written bodies are written twice when they are spilled: not while others are about to give their memory back. That
  // must be worth it, or a few small ones after the other would keep who waits waiting.
  if (!largest || coming_back >= std::min(kMaxSpillBytes, pool_->limit_bytes() / 8)) return false;
  {
    const auto lock = largest->lock();
    if (largest->sealing || largest->forgotten) return true;
    largest->sealing = true;  // nobody else seals or spills it meanwhile
  }
  Status status = spill(largest);
  {
    const auto lock = largest->lock();
    changes_->end_seal(largest);
  }
  dirty_.seal_ended();
  health_.report(Health::Of::kData, status);
  status ? volume_took_it() : volume_failed(status);
  tree_->forget_when_idle(largest);
  return status.has_value();
}

Status StoreImpl::spill(const ObjectPtr& object) {
  FilePtr file;
  ExtentId extent;
  {
    const auto lock = object->lock();
    file = object->spill;
    extent = object->spill_extent;
  }
  if (!file) {
    KVC_ASSIGN(Extents::Made made, extents_->make(PlaceKind::kSolo));
    kill_point("spill-made");
    file = made.file;
    extent = made.id;
    const auto lock = object->lock();
    object->spill = made.file;
    object->spill_extent = made.id;
    object->spill_written.clear();
  }
  uint64_t spilled = 0;
  size_t next = 0;
  while (spilled < kMaxSpillBytes) {
    std::vector<SpillPiece> pieces;
    {
      const auto lock = object->lock();
      pieces = object->spill_pieces(next, kWriteBytes / kUnitBytes);
    }
    if (pieces.empty()) break;
    for (SpillPiece& piece : pieces) {
      const std::span<const std::byte> bytes = piece.block->bytes().first(align_up(piece.bytes, kBlockBytes));
      KVC_TRY(file->write({&bytes, 1}, piece.index * kUnitBytes));
      piece.checksum = checksum(bytes.first(piece.bytes));
      counters_.write_volume_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
      spilled += bytes.size();
      kill_point("spill-written");
    }
    std::vector<BlockPtr> dropped;  // outlives the lock
    const auto lock = object->lock();
    dropped = object->settle_spilled(pieces);
  }
  return {};
}

}  // namespace kvcachefs
