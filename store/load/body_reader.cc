#include "store/load/body_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {
// The unit, if its bytes are in the spill file; null: they are in the base.
const Unit* spilled_unit(const Snapshot& snapshot, size_t index) {
  const Unit* unit = index < snapshot.units.size() ? &snapshot.units[index] : nullptr;
  return unit != nullptr && unit->spilled && !unit->block ? unit : nullptr;
}
}  // namespace

// Reads `length` bytes of the unit into the block, and verifies them.
Status BodyReader::read(const Snapshot& snapshot, size_t index, uint64_t length, Block& block) const {
  const Unit* spilled = spilled_unit(snapshot, index);
  FilePtr file = snapshot.spill;
  const Place place = spilled != nullptr ? Place{PlaceKind::kSolo, snapshot.spill_extent, 0, 0} : snapshot.base.place;
  if (spilled == nullptr) {
    KVC_ASSIGN(file, extents_.open(place.extent, place.kind));
    if (index >= snapshot.base.checksums.size()) return fail(Code::kCorrupt, "its record has no checksum for these bytes");
  }
  const uint64_t expected = spilled != nullptr ? spilled->spill_checksum : snapshot.base.checksums[index];
  const auto piece = block.bytes().first(align_up(length, kBlockBytes));
  auto got = file->read(piece, place.offset + index * kUnitBytes);
  if (got) counters_.read_bytes_from_volume.fetch_add(*got, std::memory_order_relaxed);
  const auto is_right = [&] { return got && *got >= length && checksum(block.bytes().first(length)) == expected; };
  if (!is_right() && spilled == nullptr) {  // a cache may have been wrong, or the descriptor is dead
    if (!got) extents_.close_cached(place.extent);
    KVC_ASSIGN(const FilePtr fresh, extents_.open_fresh(place.extent, place.kind));
    got = fresh->read(piece, place.offset + index * kUnitBytes);
  }
  if (!got) return std::unexpected(std::move(got).error());
  if (!is_right())
    return fail(Code::kCorrupt, fmt::format("{}: the bytes at {} ({} of the body) do not match their checksum", file->path(),
                                            place.offset + index * kUnitBytes, index * kUnitBytes));
  return {};
}

// The same for a body that lies in its record.
Status BodyReader::copy_inline(const Body& base, size_t index, uint64_t length, Block& block) {
  const uint64_t begin = index * kUnitBytes;
  if (base.inline_bytes.size() < begin + length)
    return fail(Code::kCorrupt, fmt::format("inline body: {} of {} bytes are there", base.inline_bytes.size(), begin + length));
  if (index >= base.checksums.size()) return fail(Code::kCorrupt, "its record has no checksum for these bytes");
  std::memcpy(block.data(), base.inline_bytes.data() + begin, length);
  if (checksum(block.bytes().first(length)) != base.checksums[index])
    return fail(Code::kCorrupt, fmt::format("inline body: unit {} does not match its checksum", index));
  return {};
}

Result<BlockPtr> BodyReader::fetch(const Snapshot& snapshot, size_t index, const Memory& memory) const {
  const uint64_t wanted = unit_length(snapshot.size_bytes, index);
  const Unit* spilled = spilled_unit(snapshot, index);
  const uint64_t length = spilled != nullptr ? spilled->spill_bytes : unit_length(snapshot.base.size_bytes, index);
  const uint64_t base_left = snapshot.base_valid_bytes - std::min(snapshot.base_valid_bytes, index * kUnitBytes);
  const uint64_t valid = std::min({spilled != nullptr ? length : base_left, length, wanted});
  const uint64_t most = std::max(length, wanted);  // the stored unit may be longer than the unit now
  BlockPtr block = memory(MemoryPool::block_bytes(most)).make_block(most);
  if (length > 0) {
    const bool in_record = spilled == nullptr && snapshot.base.place.kind == PlaceKind::kInline;
    KVC_TRY(in_record ? copy_inline(snapshot.base, index, length, *block) : read(snapshot, index, length, *block));
  }
  std::memset(block->data() + valid, 0, block->capacity_bytes() - valid);
  return block;
}

BodyReader::Wholeness BodyReader::wholeness(const ObjectRecord& object, const Memory& memory) const {
  const Body& body = object.body;
  if (body.place.kind == PlaceKind::kNone || body.place.kind == PlaceKind::kInline || body.quarantined) return Wholeness::kWhole;
  const auto judge = [&](const Error& error) {
    const bool absent = error.code == Code::kCorrupt || error.code == Code::kNotFound;
    log::warn("object {} {}: {}", object.id.value,
              absent ? "was not on the medium when the machine stopped" : "could not be verified, and is kept", error.message);
    return absent ? Wholeness::kAbsent : Wholeness::kUnknown;
  };
  if (body.place.kind == PlaceKind::kRaw) {
    auto info = extents_.info(body.place.extent, PlaceKind::kRaw);
    return info ? Wholeness::kWhole : judge(info.error());
  }
  counters_.verified_bodies.fetch_add(1);
  const Snapshot stored = stored_snapshot(body);
  if (body.checksums.size() < div_ceil(body.size_bytes, kUnitBytes)) return Wholeness::kAbsent;
  for (size_t index = 0; index < div_ceil(body.size_bytes, kUnitBytes); ++index)
    if (auto block = fetch(stored, index, memory); !block) return judge(block.error());
  return Wholeness::kWhole;
}

}  // namespace kvcachefs
