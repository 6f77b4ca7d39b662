#include "store/writeback/spiller.h"

#include <algorithm>
#include <utility>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/writeback/body_writer.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kMaxSpillBytes = 64 * kMiB;  // of memory that one call gives back under pressure
}  // namespace

bool Spiller::spill_one() {
  ObjectPtr largest;
  uint64_t most = 0, coming_back = 0;
  for (const ObjectPtr& object : parts_.dirty.content()) {
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
  // A half-written body that is spilled is written twice, so none is spilled while bodies being sealed are about to give memory back. That
  // must be enough memory: otherwise a series of small seals would keep the waiting requests waiting.
  if (!largest || coming_back >= std::min(kMaxSpillBytes, parts_.pool.limit_bytes() / 8)) return false;
  {
    const auto lock = largest->lock();
    if (largest->sealing || largest->forgotten) return true;
    largest->sealing = true;  // so that no other thread seals or spills it meanwhile
  }
  Status status = spill(largest);
  {
    const auto lock = largest->lock();
    parts_.changes.end_seal(largest);
  }
  parts_.dirty.seal_ended();
  parts_.health.report(Health::Of::kData, status);
  if (status) parts_.refusals.succeeded();
  else parts_.refusals.failed(status.error());
  parts_.tree.forget_when_idle(largest);
  return status.has_value();
}

Status Spiller::spill(const ObjectPtr& object) {
  FilePtr file;
  ExtentId extent;
  {
    const auto lock = object->lock();
    file = object->spill;
    extent = object->spill_extent;
  }
  if (!file) {
    KVC_ASSIGN(Extents::Made made, parts_.extents.make(PlaceKind::kSolo));
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
      parts_.counters.write_volume_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
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
