#include "store/writeback/sealer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

alignas(4096) constexpr std::array<std::byte, kUnitBytes> kZeros{};

std::span<std::byte> zeros(uint64_t bytes) { return {const_cast<std::byte*>(kZeros.data()), bytes}; }

uint64_t pack_bytes(const Volume& volume, uint64_t extent_bytes, const Space& space) {
  return volume.features().punch_hole ? extent_bytes : unpunched_pack_bytes(space.own_limit_bytes(), extent_bytes);
}

}  // namespace

// One body that is being sealed.
struct Sealer::Plan {
  Snapshot snapshot;
  Body body;
  FilePtr file;       // its destination; null: nothing to write
  ExtentId extent;
  ObjectId shared_with;
  Status status;
  bool has_its_size = false;  // the solo file needs no cut
  bool unread = false;     // bytes of its base or spill file could not be read,
  bool base_lost = false;  // ... and never can be
};

BodyReader::Memory Sealer::memory_to_seal(BodyWriter* writer) {
  return [this, writer](uint64_t bytes) {
    return parts_.cache.reserve_to_seal(bytes, [writer] {
      if (writer != nullptr) writer->wait_all();
    });
  };
}

bool Sealer::begin_seal(const ObjectPtr& object, Promise promise, Snapshot& snapshot) {
  const auto lock = object->lock();
  if (object->sealing || !object->content_dirty() || !object->sealable()) return false;
  // The reserved space goes with this version; the promise of fallocate asks for room for the next one.
  if (!parts_.changes.keep_room(*object) && promise == Promise::kKept) return false;
  snapshot = object->begin_seal(object);
  return true;
}

// --- placing ---

// Gives a file its size before it is written: ext4 and XFS do writes that make a file grow one after the other, so that 32 MiB in
// flight would be one request at a time. Not where the volume has no holes: the file would be filled with zeros.
// False: the writes make the file grow.
bool Sealer::size_ahead(File& file, uint64_t bytes) {
  if (!parts_.volume.features().punch_hole) return false;
  const Status status = file.truncate(bytes);
  if (!status) log::debug("{}", status.error().message);
  return status.has_value();
}

void Sealer::close_target(PackTarget& target) {
  if (!target.file) return;
  target.closed.push_back(target.extent);
  target.uncut.emplace_back(std::exchange(target.file, nullptr), std::exchange(target.next_offset, 0));
  target.extent = {};
}

// Cuts closed packs to their ends. Call it when no write to them is under way: the truncation would wait for it. If a crash leaves a pack
// uncut, no byte behind its last body is read.
void Sealer::cut_closed(PackTarget& target) {
  for (auto& [file, end] : std::exchange(target.uncut, {}))
    if (Status status = file->truncate(end); !status) log::debug("{}", status.error().message);
}

// Opens a pack with `room` bytes left. If no new one can be made, the old one grows past its size: accepted bytes need a place.
Status Sealer::open_target(PackTarget& target, uint64_t room) {
  if (target.file && parts_.extents.is_lost(target.extent)) close_target(target);
  const uint64_t most = pack_bytes(parts_.volume, parts_.extent_bytes, parts_.space);
  const bool full = target.file && target.next_offset + room > most;
  if (target.file && (!full || target.no_pack)) return {};
  if (target.no_pack) return std::unexpected(*target.no_pack);
  auto made = target.file ? parts_.extents.make_if_few_open(PlaceKind::kPacked) : parts_.extents.make(PlaceKind::kPacked);
  if (!made) {
    if (!lacks_files(made.error())) return std::unexpected(std::move(made).error());
    target.no_pack = made.error();
    if (target.file) return {};
    return std::unexpected(std::move(made).error());
  }
  close_target(target);
  target.extent = made->id;
  target.file = std::move(made->file);
  target.next_offset = kBlockBytes;
  size_ahead(*target.file, most);
  parts_.dead.pack_opened(target.extent);
  return {};
}

Status Sealer::place_body(Plan& plan, PackTarget& target) {
  const Snapshot& snapshot = plan.snapshot;
  const uint64_t room = align_up(snapshot.size_bytes, kBlockBytes);
  Body& body = plan.body;
  body.size_bytes = snapshot.size_bytes;
  body.version = snapshot.base.version + 1;
  if (snapshot.raw) {
    body.place = snapshot.base.place;
    plan.extent = body.place.extent;
    return {};
  }
  if (snapshot.size_bytes == 0) return {};
  if (snapshot.spill && !parts_.extents.is_lost(snapshot.spill_extent)) {
    body.place = {PlaceKind::kSolo, snapshot.spill_extent, 0, snapshot.size_bytes};
    plan.file = snapshot.spill;
    plan.extent = snapshot.spill_extent;
    return {};
  }
  if (snapshot.size_bytes < parts_.options.inline_below_bytes()) {
    body.place = {PlaceKind::kInline, {}, 0, snapshot.size_bytes};
    return {};
  }
  if (snapshot.size_bytes >= parts_.options.pack_below_bytes() || room > pack_bytes(parts_.volume, parts_.extent_bytes, parts_.space) - kBlockBytes) {
    auto made = target.no_solo ? Result<Extents::Made>(std::unexpected(*target.no_solo)) : parts_.extents.make_if_few_open(PlaceKind::kSolo);
    if (made) {
      plan.has_its_size = size_ahead(*made->file, room) && room == snapshot.size_bytes;
      body.place = {PlaceKind::kSolo, made->id, 0, snapshot.size_bytes};
      plan.file = std::move(made->file);
      plan.extent = made->id;
      return {};
    }
    if (!lacks_files(made.error())) return std::unexpected(std::move(made).error());
    target.no_solo = std::move(made).error();  // goes into a pack then, even if that becomes too large
  }
  KVC_TRY(open_target(target, room));
  body.place = {PlaceKind::kPacked, target.extent, target.next_offset, snapshot.size_bytes};
  plan.file = target.file;
  plan.extent = target.extent;
  target.next_offset += room;
  return {};
}

// --- writing ---

namespace {
// True if the unit was a hole or zeros when the base was sealed: it becomes a hole again, and is neither read nor written. Otherwise a sparse
// file that is changed in one place would be filled, and take as long as a full one.
bool is_hole_of_base(const Snapshot& snapshot, size_t index, uint64_t length) {
  if (index >= snapshot.base.checksums.size() || unit_length(snapshot.base.size_bytes, index) != length) return false;
  return snapshot.base_valid_bytes >= index * kUnitBytes + length && snapshot.base.checksums[index] == checksum_of_zeros(length);
}
}  // namespace

Status Sealer::write_body(Plan& plan, BodyWriter& writer) {
  const Snapshot& snapshot = plan.snapshot;
  Body& body = plan.body;
  if (body.place.kind == PlaceKind::kNone || body.place.kind == PlaceKind::kRaw) return {};
  const bool solo = body.place.kind == PlaceKind::kSolo;
  const size_t count = div_ceil(snapshot.size_bytes, kUnitBytes);
  body.checksums.clear();
  body.checksums.reserve(count);
  for (size_t index = 0; index < count; ++index) {
    const uint64_t length = unit_length(snapshot.size_bytes, index);
    const uint64_t padded = align_up(length, kBlockBytes);
    const uint64_t offset = body.place.offset + index * kUnitBytes;
    const Unit* unit = index < snapshot.units.size() ? &snapshot.units[index] : nullptr;
    BlockPtr block = unit != nullptr ? unit->block : nullptr;
    // Holes stay holes, unless the file has older bytes there.
    const bool sparse = solo && !(index < snapshot.spill_written.size() && snapshot.spill_written[index]);
    const bool spilled = unit != nullptr && unit->spilled && !unit->dirty;
    if (spilled && plan.file == snapshot.spill && unit->spill_bytes == length) {
      body.checksums.push_back(unit->spill_checksum);  // it is in that file already
      continue;
    }
    const bool from_spill = unit != nullptr && unit->spilled;
    if (!block && (from_spill || (index * kUnitBytes < snapshot.base_valid_bytes && !is_hole_of_base(snapshot, index, length)))) {
      KVC_ASSIGN(block, parts_.reader.fetch(snapshot, index, memory_to_seal(&writer)));
    }
    if (!block) {
      body.checksums.push_back(checksum_of_zeros(length));
      if (body.place.kind == PlaceKind::kInline)
        body.inline_bytes.resize(body.inline_bytes.size() + length);
      else if (!sparse)
        writer.add(&plan.status, plan.file, offset, zeros(padded), nullptr);
      continue;
    }
    const uint64_t from_block = std::min<uint64_t>(padded, block->capacity_bytes());
    const auto stored = block->bytes().first(from_block);
    if (body.place.kind == PlaceKind::kInline) {
      body.inline_bytes.insert(body.inline_bytes.end(), stored.begin(), stored.begin() + static_cast<long>(std::min(length, from_block)));
      body.inline_bytes.resize(index * kUnitBytes + length);
    } else {
      writer.add(&plan.status, plan.file, offset, stored, block);
      if (from_block < padded && !sparse) writer.add(&plan.status, plan.file, offset + from_block, zeros(padded - from_block), nullptr);
    }
    if (from_block >= length) {
      body.checksums.push_back(checksum(stored.first(length)));
    } else {
      Hasher hasher;
      hasher.update(stored);
      hasher.update(zeros(length - from_block));
      body.checksums.push_back(hasher.digest());
    }
  }
  return {};
}

// Cuts a solo extent to the body's size: its last block was written whole, or it ends in a hole.
Status Sealer::finish_solo(Plan& plan) {
  if (plan.body.place.kind != PlaceKind::kSolo || !plan.file) return {};
  if (plan.has_its_size) return {};
  KVC_TRY(plan.file->truncate(plan.body.size_bytes));
  kill_point("solo-cut");
  return {};
}

// If a rename put this object in the place of another that has the same bytes, takes over the place of that one.
bool Sealer::same_bytes_as_replaced(Plan& plan, BodyWriter& writer) {
  ObjectId replaced;
  {
    const Tree::Read tree = parts_.tree.read();
    replaced = plan.snapshot.object->replaced;
    const auto lock = plan.snapshot.object->lock();
    if (plan.snapshot.object->replaced_checked) return false;
  }
  if (!replaced.valid() || plan.snapshot.spill) return false;
  auto record = parts_.index.find_object(replaced);
  if (!record || !*record) return false;
  const Body& old = (*record)->body;
  const PlaceKind kind = old.place.kind;
  if (old.size_bytes != plan.snapshot.size_bytes || old.quarantined || (kind != PlaceKind::kPacked && kind != PlaceKind::kSolo))
    return false;
  if (old.checksums.size() != div_ceil(old.size_bytes, kUnitBytes) || parts_.extents.is_lost(old.place.extent)) return false;
  const Snapshot stored = stored_snapshot(old);
  std::vector<uint64_t> checksums;
  for (size_t index = 0; index < div_ceil(old.size_bytes, kUnitBytes); ++index) {
    const uint64_t length = unit_length(old.size_bytes, index);
    const Unit* unit = index < plan.snapshot.units.size() ? &plan.snapshot.units[index] : nullptr;
    if (unit == nullptr || !unit->block || unit->block->capacity_bytes() < length) return false;
    if (checksum(unit->block->bytes().first(length)) != old.checksums[index]) return false;
    auto block = parts_.reader.fetch(stored, index, memory_to_seal(&writer));
    if (!block || std::memcmp((*block)->data(), unit->block->data(), length) != 0) return false;
    checksums.push_back(old.checksums[index]);
  }
  plan.body.size_bytes = old.size_bytes;
  plan.body.version = plan.snapshot.base.version + 1;
  plan.body.place = old.place;
  plan.body.checksums = std::move(checksums);
  plan.shared_with = replaced;
  parts_.counters.deduplicated_bodies.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Gives back the place of a body that failed. No record ever named it, so its blocks go back at once: the failure may be for want of them.
void Sealer::undo_write(Plan& plan) {
  const Place& place = plan.body.place;
  Status undone = fail(Code::kUnsupported, "");
  if (place.kind == PlaceKind::kSolo) {
    plan.file.reset();
    undone = parts_.extents.remove(place.extent, PlaceKind::kSolo);
  } else if (place.kind == PlaceKind::kPacked && plan.file && parts_.volume.features().punch_hole) {
    undone = plan.file->punch(place.offset, align_up(place.length, kBlockBytes));
  }
  if (!undone) parts_.dead.add({}, place);
}

std::vector<SealedBody> Sealer::seal(std::vector<Snapshot> snapshots, PackTarget& target, Status& status) {
  std::vector<Plan> plans(snapshots.size());
  target.no_solo.reset();  // each batch tries once
  target.no_pack.reset();
  {
    BodyWriter writer(parts_.volume, parts_.counters);
    for (size_t i = 0; i < plans.size(); ++i) {
      Plan& plan = plans[i];
      plan.snapshot = std::move(snapshots[i]);
      if (same_bytes_as_replaced(plan, writer)) continue;
      Status done = place_body(plan, target);
      kill_point("body-placed");
      if (done) {
        done = write_body(plan, writer);
        plan.unread = !done;
        plan.base_lost = !done && (done.error().code == Code::kCorrupt || done.error().code == Code::kNotFound);
      }
      if (!done) {
        writer.wait_all();  // earlier pieces of the body refer to plan.status
        plan.status = std::move(done);
      }
    }
    writer.wait_all();
  }
  cut_closed(target);
  if (!plans.empty()) kill_point("body-written");
  std::vector<SealedBody> sealed;
  size_t failed = 0, stay = 0;
  bool wrote = false;  // to a file, not only to the journal
  for (Plan& plan : plans) {
    if (plan.status) plan.status = finish_solo(plan);
    const ObjectPtr& object = plan.snapshot.object;
    if (plan.unread && !plan.base_lost && !parts_.extents.is_lost(plan.snapshot.base.place) && parts_.changes.let_stay(object)) {
      if (++stay == 1) log::warn("object {} stays in a pack that is mostly dead: {}", object->id.value, plan.status.error().message);
      undo_write(plan);
      parts_.tree.forget_when_idle(object);
      continue;
    }
    if (!plan.status) {
      parts_.counters.errors_volume_write.fetch_add(1, std::memory_order_relaxed);
      ++failed;
      const auto told = [&] { return fmt::format("object {} could not be written: {}", object->id.value, plan.status.error().message); };
      if (plan.base_lost) log::error("{}", told());
      else if (failed == 1) failure_.tell(told());
      const bool gone = plan.base_lost && parts_.quarantine.put_moving(object, plan.status.error().message);
      if (gone) {
        // No client wrote to it.
      } else if (plan.base_lost) {  // its own error: the clients that wrote to it get it, all others go on
        const auto lock = object->lock();
        object->note_failed_write(plan.status.error());
      } else if (status) {
        status = plan.status;
      }
      // The pack's descriptor may be dead. But not for kNoSpace: there may be no room for another pack.
      if (target.file && plan.file == target.file && plan.status.error().code != Code::kNoSpace) close_target(target);
      if (plan.file != plan.snapshot.spill || !plan.file) undo_write(plan);
      if (!gone) parts_.changes.abandon_seal(object);
      parts_.tree.forget_when_idle(object);
      continue;
    }
    wrote |= plan.file != nullptr;
    if (plan.file) parts_.extents.note_unsynced(plan.extent, plan.body.place.kind, plan.file, plan.body.size_bytes);
    if (!plan.snapshot.raw) parts_.commits.note_written(plan.body.size_bytes);
    parts_.counters.sealed_bodies.fetch_add(1, std::memory_order_relaxed);
    sealed.push_back({std::move(plan.snapshot), std::move(plan.body), plan.extent, plan.shared_with});
  }
  if (stay > 1) log::warn("... and {} more objects", stay - 1);
  if (failed > 1) failure_.tell(fmt::format("... and {} more objects of {} could not be written", failed - 1, plans.size()));
  if (failed == 0 && wrote) failure_.over();
  return sealed;
}

void Sealer::finish(PackTarget& target) {
  close_target(target);
  cut_closed(target);
  parts_.dead.packs_closed(std::exchange(target.closed, {}));
}

}  // namespace kvcachefs
