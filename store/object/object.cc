#include "store/object/object.h"

#include <array>
#include <cstring>

#include "store/object/snapshot.h"

namespace kvcachefs {

namespace {

alignas(4096) constexpr std::array<std::byte, kUnitBytes> kZeros{};

// True if the block has no other holder. Reading the count alone would not order the last reads of earlier holders before our
// writes; copying the pointer does.
bool is_only_ours(const BlockPtr& block) {
  if (block.use_count() != 1) return false;
  static_cast<void>(BlockPtr(block));
  return true;
}

}  // namespace

// --- its state ---

bool Object::in_ram() const {
  const size_t count = div_ceil(size_bytes, kUnitBytes);
  return count > 0 && units.size() >= count &&
         std::all_of(units.begin(), units.begin() + static_cast<long>(count), [](const Unit& unit) { return unit.block != nullptr; });
}

void Object::note_allocated(uint64_t from, uint64_t to) {
  allocated_from = allocated_to > 0 ? std::min(allocated_from, from) : from;
  allocated_to = std::max(allocated_to, to);
}

void Object::cut_allocated(uint64_t size) {
  allocated_to = std::min(allocated_to, size);
  if (allocated_from >= allocated_to) allocated_from = allocated_to = 0;
}

void Object::note_failed_write(const Error& error, uint64_t begin, uint64_t end) {
  if (write_error)
    write_error->note(error, begin, end);
  else
    write_error = FailedWrite{error, begin, end};
}

bool Object::is_wanted(size_t index) const {
  for (const auto& [first, last] : wanted)
    if (index >= first && index < last) return true;
  return false;
}

bool Object::drop_handle() {
  if (--handles > 0) return false;
  pin_frozen();
  return true;
}

void Object::pin_frozen() {
  if (!may_be_frozen) return;  // true of most bodies; this runs at each first open and last close
  for (const Unit& unit : units) {
    if (!unit.block || !unit.block->frozen()) continue;
    return unit.block->file()->set_pinned(handles > 0);
  }
  may_be_frozen = false;
}

bool Object::needs_load(size_t index) const {
  const Unit* unit = unit_or_null(index);
  if (unit != nullptr && (unit->block || unit->dirty)) return false;
  if (unit != nullptr && unit->spilled) return true;
  return !raw && index * kUnitBytes < base_valid_bytes;
}

bool Object::is_cut_in_the_spill_file(uint64_t new_size_bytes) const {
  const Unit* unit = unit_or_null(unit_of(new_size_bytes));
  return unit != nullptr && unit->spilled && !unit->block && new_size_bytes % kUnitBytes < unit->spill_bytes;
}

// --- writing ---

bool Object::takes_new_block(size_t index, uint64_t end) const {
  const Unit* unit = unit_or_null(index);
  if (unit == nullptr || !unit->block) return true;
  return end > unit->block->capacity_bytes() || unit->block->frozen() || !is_only_ours(unit->block);
}

// Writing up to `end` leaves the old block of a unit to its other holders. The clone lies outside the memory file, so the body is
// not whole there any more and takes no more of it. The caller has to know that before it sums up the memory that it needs.
bool Object::clones_a_block(size_t first, size_t last, uint64_t end) const {
  for (size_t index = first; index <= last; ++index) {
    const Unit* unit = unit_or_null(index);
    if (unit == nullptr || !unit->block) continue;
    if (takes_new_block(index, std::min(end - index * kUnitBytes, kUnitBytes))) return true;
  }
  return false;
}

// The memory of the pool that writing [begin, end) of a unit takes.
uint64_t Object::memory_for_piece(size_t index, uint64_t begin, uint64_t end) const {
  if (!takes_new_block(index, end)) return 0;
  const Unit* unit = unit_or_null(index);
  if (unit != nullptr && unit->block) return MemoryPool::block_bytes(std::max<uint64_t>(end, unit->block->capacity_bytes()));
  if (memory_file && memory_file->offers(index)) return 0;
  return MemoryPool::block_bytes(begin > 0 || index > 0 ? std::max(end, begin) : end);
}

// Copies bytes (or zeros, if bytes == nullptr) to [begin, end) of a unit. `memory` must suffice.
void Object::place_piece(size_t index, uint64_t begin, uint64_t end, const std::byte* bytes, Reservation& memory) {
  if (units.size() <= index) units.resize(index + 1);
  Unit& unit = units[index];
  if (takes_new_block(index, end)) {
    const size_t old_bytes = unit.block ? unit.block->capacity_bytes() : 0;
    BlockPtr block;
    if (!unit.block && memory_file) block = MemoryFile::make_block(memory_file, index);
    if (!block) block = memory.make_block(std::max<size_t>(end, old_bytes));
    if (old_bytes > 0) std::memcpy(block->data(), unit.block->data(), old_bytes);
    // Clears only the bytes that neither the old block nor this write fills.
    if (begin > old_bytes) std::memset(block->data() + old_bytes, 0, begin - old_bytes);
    const uint64_t filled = std::max<uint64_t>(end, old_bytes);
    std::memset(block->data() + filled, 0, block->capacity_bytes() - filled);
    unit.block = std::move(block);
  }
  if (bytes != nullptr)
    std::memcpy(unit.block->data() + begin, bytes, end - begin);
  else
    std::memset(unit.block->data() + begin, 0, end - begin);
  unit.set_dirty(true);
}

void Object::zero_tail(uint64_t from, Reservation& memory) {
  const size_t index = unit_of(from);
  Unit* unit = unit_or_null(index);
  if (unit == nullptr) return;
  const uint64_t in_unit = from % kUnitBytes;
  if (!unit->block || in_unit >= unit->block->capacity_bytes()) return;
  const uint64_t capacity = unit->block->capacity_bytes();
  if (clones_a_block(index, index, index * kUnitBytes + capacity)) memory_file.reset();
  place_piece(index, in_unit, capacity, nullptr, memory);
}

// A client that empties the body clears the error of failed writes. Bytes that the kernel cuts off after a failed write are missing
// like the rest of that write: its caller was told that none of it was done.
void Object::note_cut(uint64_t new_size_bytes, Resize how) {
  if (!write_error || new_size_bytes >= size_bytes) return;
  if (how == Resize::kAfterFailedWrite)
    note_failed_write(Error(*write_error), new_size_bytes, size_bytes);
  else if (new_size_bytes == 0)
    write_error.reset();
}

// Gives the body the file that an earlier round got. Describes in `file` the file or pages that units [first, last) lack; the caller
// gets those without the lock. False: they lack nothing, or there will be no file for the body.
bool Object::lacks_file_memory(size_t first, size_t last, FileRequest& file) {
  file.wanted = false;
  if (file.refused) expected_bytes = 0;
  if (file.refused || (!memory_file && expected_bytes == 0)) {
    file.fresh.reset();  // another write of the body went on without a file
    return false;
  }
  if (!memory_file) {
    if (!file.fresh) {
      file.bytes = expected_bytes;
      return file.wanted = true;
    }
    memory_file = std::move(file.fresh);
    expected_bytes = 0;
  }
  file.fresh.reset();
  size_t lacking_first = SIZE_MAX, lacking_last = 0;
  for (size_t index = first; index < last; ++index) {
    const Unit* unit = unit_or_null(index);
    if ((unit != nullptr && unit->block) || !memory_file->lacks_pages(index)) continue;
    lacking_first = std::min(lacking_first, index);
    lacking_last = index + 1;
  }
  if (lacking_first == SIZE_MAX) return false;
  file.grows = memory_file;
  file.first = lacking_first;
  file.last = lacking_last;
  return file.wanted = true;
}

// The memory file that holds all of the body, in order, and nothing else; null if there is none.
MemoryFilePtr Object::whole_in_file() const {
  const size_t count = div_ceil(size_bytes, kUnitBytes);
  if (count == 0 || units.size() != count || !units[0].block || !loading.empty()) return nullptr;
  const MemoryFilePtr& file = units[0].block->file();
  // The file has further blocks: a reader still holds units of an earlier version.
  if (!file || file->block_count() != count) return nullptr;
  for (size_t index = 0; index < count; ++index) {
    const BlockPtr& block = units[index].block;
    if (!block || block->file() != file || block->data() != file->unit_data(index)) return nullptr;
    const uint64_t length = unit_length(size_bytes, index);
    if (block->capacity_bytes() < length) return nullptr;
  }
  return file;
}

bool Object::comes_into_file() const {
  const MemoryFilePtr& file = memory_file;
  if (!file || file->frozen() || loading.empty() || write_handles > 0) return false;
  for (size_t index = 0; index < div_ceil(size_bytes, kUnitBytes); ++index) {
    const Unit* unit = unit_or_null(index);
    const bool there = unit != nullptr && unit->block && unit->block->file() == file;
    if (!there && !loading.contains(index)) return false;
  }
  return true;
}

// --- reading ---

ReadPlan Object::plan_read(uint64_t offset, size_t length) {
  ReadPlan plan;
  if (offset >= size_bytes) length = 0;
  plan.length = length = std::min<uint64_t>(length, size_bytes - std::min(offset, size_bytes));
  const uint64_t end = offset + length;
  plan.wanted_last = length == 0 ? unit_of(offset) : unit_of(end - 1) + 1;
  plan.body_units = div_ceil(size_bytes, kUnitBytes);
  plan.quarantined = base.quarantined;
  for (uint64_t at = offset; at < end;) {
    const size_t index = unit_of(at);
    const uint64_t in_unit = at % kUnitBytes;
    const uint64_t take = std::min(kUnitBytes - in_unit, end - at);
    at += take;
    if (needs_load(index)) plan.lacks_units = true;
    if (plan.lacks_units) continue;
    const Unit* unit = unit_or_null(index);
    const uint64_t capacity = unit != nullptr && unit->block ? unit->block->capacity_bytes() : 0;
    const uint64_t from_block = capacity > in_unit ? std::min(take, capacity - in_unit) : 0;
    if (from_block > 0) {
      plan.reply.pieces.push_back({unit->block->data() + in_unit, from_block});
      plan.reply.keep.push_back(unit->block);
    }
    if (from_block < take) plan.reply.pieces.push_back({const_cast<std::byte*>(kZeros.data()), take - from_block});
  }
  if (plan.lacks_units) {
    plan.reply = {};
    return plan;
  }
  plan.reply.bytes = length;
  read_bytes += length;
  return plan;
}

void Object::place_loaded(size_t index, BlockPtr block, uint64_t stored_bytes, bool from_spill_file) {
  if (units.size() <= index) units.resize(index + 1);
  Unit& unit = units[index];
  const uint64_t valid = from_spill_file ? stored_bytes : std::min<uint64_t>(stored_bytes, base_valid_bytes - index * kUnitBytes);
  std::memset(block->data() + valid, 0, block->capacity_bytes() - valid);
  unit.block = std::move(block);
  unit.set_dirty(false);  // the base or the spill file, where it was read from, still has it
}

DroppedBlocks Object::drop_clean() {
  DroppedBlocks dropped;
  const bool being_read = !wanted.empty();
  for (size_t index = 0; index < units.size(); ++index) {
    Unit& unit = units[index];
    if (!unit.block || unit.dirty) continue;
    // The memory of a file comes back only as a whole: not while the body is open by passthrough, nor while a wanted unit holds it. So the
    // units are kept: the reader of the wanted one finds those behind it here, and needs no memory that others wait for.
    if (is_wanted(index) || (unit.block->file() && (being_read || (handles > 0 && unit.block->frozen())))) {
      dropped.keeps_some = true;
      continue;
    }
    dropped.bytes += unit.block->capacity_bytes();
    dropped.blocks.push_back(std::move(unit.block));
    unit.block.reset();
  }
  if (!dropped.blocks.empty() && !being_read) memory_file.reset();
  return dropped;
}

// --- sealing ---

Snapshot Object::begin_seal(const ObjectPtr& self) {
  Snapshot snapshot;
  sealing = true;
  shrunk_to_bytes = UINT64_MAX;
  snapshot.object = self;
  snapshot.size_bytes = size_bytes;
  snapshot.units = units;
  snapshot.base = base;
  snapshot.base_valid_bytes = base_valid_bytes;
  snapshot.spill = spill;
  snapshot.spill_extent = spill_extent;
  snapshot.spill_written = spill_written;
  // This seal writes all units into the spill file; they stay there if the seal fails and the file is used further.
  if (spill) spill_written.assign(std::max(spill_written.size(), div_ceil(size_bytes, kUnitBytes)), true);
  snapshot.raw = raw != nullptr;
  snapshot.content_version = content_version;
  snapshot.mtime_ns = attributes.mtime_ns;
  snapshot.ctime_ns = attributes.ctime_ns;
  // That space is for this body; writes from now on make another one and reserve anew.
  sealing_reserved_bytes = std::exchange(reserved_bytes, 0);
  return snapshot;
}

bool Object::settle_units(const Snapshot& sealed) {
  bool clean_units = false;
  for (size_t index = 0; index < units.size(); ++index) {
    Unit& unit = units[index];
    const bool known = index < sealed.units.size();
    const bool written = unit.block && known && unit.block == sealed.units[index].block;
    if (written || !content_dirty()) unit.set_dirty(false);
    unit.spilled = false;  // the spill file is the base now
    clean_units |= unit.block && !unit.dirty;
  }
  return clean_units;
}

// --- spilling ---

std::vector<SpillPiece> Object::spill_pieces(size_t& next, size_t most) {
  std::vector<SpillPiece> pieces;
  for (; next < units.size() && pieces.size() < most; ++next) {
    const Unit& unit = units[next];
    if (!unit.block || !unit.dirty || next * kUnitBytes >= size_bytes) continue;
    const uint64_t length = unit_length(size_bytes, next);
    if (spill_written.size() <= next) spill_written.resize(next + 1);
    spill_written[next] = true;
    pieces.push_back({next, unit.block, static_cast<uint32_t>(std::min<uint64_t>(length, unit.block->capacity_bytes()))});
  }
  return pieces;
}

std::vector<BlockPtr> Object::settle_spilled(std::span<const SpillPiece> pieces) {
  std::vector<BlockPtr> dropped;
  memory_file.reset();
  for (const SpillPiece& piece : pieces) {
    if (piece.index >= units.size()) continue;  // truncated meanwhile
    Unit& unit = units[piece.index];
    if (unit.block != piece.block) continue;  // written meanwhile: the clone is newer
    unit.spilled = true;
    unit.spill_bytes = piece.bytes;
    unit.spill_checksum = piece.checksum;
    unit.set_dirty(false);
    dropped.push_back(std::move(unit.block));
    unit.block.reset();
  }
  return dropped;
}

}  // namespace kvcachefs
