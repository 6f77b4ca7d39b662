// An object while it is in RAM: open, changed since it was last journaled, or with bytes cached. Everything else about
// objects is in the index.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/chain/origin.h"
#include "store/memory/memory_file.h"
#include "store/memory/pool.h"
#include "store/volume/volume.h"

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
  uint32_t spill_valid_bytes = 0;  // of them: truncation cut off the rest, it reads as zeros
  uint64_t spill_checksum = 0;     // of spill_bytes

  // Of the body itself, not of a snapshot: the pool sums up what blocks hold. The lock of the body is held.
  void set_dirty(bool value) {
    dirty = value;
    if (block) block->set_holds(dirty ? Block::Holds::kDirty : Block::Holds::kClean);
  }
};

// The first error of writes that failed, and where what they were to write is still missing.
struct FailedWrite : Error {
  uint64_t from = 0, to = UINT64_MAX;
  bool undone = false;  // the body is whole without it: what is left of the error is that its name cannot become another

  void note(const Error& error, uint64_t begin, uint64_t end) {
    if (std::exchange(undone, false)) static_cast<Error&>(*this) = error;
    from = std::min(from, begin);
    to = std::max(to, end);
  }
  // [begin, end) was written: whether nothing is missing any more.
  bool covered_by(uint64_t begin, uint64_t end) {
    if (begin <= from) from = std::max(from, end);
    if (end >= to) to = std::min(to, begin);
    return from >= to;
  }
};

class Object {
 public:
  Object(ObjectId object_id, Attributes initial)
      : id(object_id), type_bits(initial.mode & 0170000), attributes(std::move(initial)) {}

  const ObjectId id;
  const uint32_t type_bits;  // of attributes.mode: fixed, so that they can be asked for without a lock
  // Of the first version of its temporary name. From its rename on its own, where no lock was taken.
  std::atomic<ObjectId> lock_identity = id;

  Mutex<LockRank::kObject> mutex;  // guards the members down to the next line; taken after the namespace lock, before leaf locks
  Attributes attributes;
  uint64_t size_bytes = 0;
  Body base;                      // as last journaled (or found in the index)
  uint64_t base_valid_bytes = 0;  // of the base: what truncation has not cut off since
  MemoryFilePtr memory_file;      // its further units are blocks of this one; null: of the pool
  uint64_t expected_bytes = 0;    // > 0: to be placed in a memory file for about so many
  uint64_t size_key = 0;          // what bodies of its kind are known by (SizeGuess)
  bool to_be_moved = false;       // into a memory file: clients map it
  std::vector<Unit> units;        // may be shorter than the body: missing ones have no block
  uint64_t content_version = 0;   // rises with every change of bytes or size
  uint64_t sealed_version = 0;    // content_version the base holds; unequal = the content is dirty
  uint64_t moving_version = 0;    // content_version that is journaled already, and sealed once more
  uint64_t named_version = 0;     // content_version when it was last renamed or linked: such a name says at least that
  uint64_t attributes_version = 0, attributes_durable = 0;
  uint64_t shrunk_to_bytes = UINT64_MAX;  // least size since the last snapshot
  uint64_t reserved_bytes = 0;    // of the volume's space, for the next seal
  uint64_t sealing_reserved_bytes = 0;  // ... for the one under way
  // What fallocate gave blocks, as far as it is known: [allocated_from, allocated_to). While the body is open for writing room
  // for it is kept, kept_bytes beside reserved_bytes: a write in there finds some, also after the body was sealed.
  uint64_t allocated_from = 0, allocated_to = 0;
  uint64_t kept_bytes = 0;
  // A write failed: rename and link fail until what is missing was written or the body emptied; fsync and close until then,
  // or until it was undone.
  std::optional<FailedWrite> write_error;
  bool written_anew = true;       // it was empty since those who have it open for writing began: no journaled version is whole
  bool sealing = false;           // one seal at a time, from snapshot to commit
  bool in_dirty_queue = false;
  bool may_be_frozen = false;  // blocks of it may be of a memory file that was passed through
  bool goes_when_loaded = false;  // removed while reads of it were under way: it leaves with the last of them
  bool replaces = false;          // a rename put it in the place of another, which goes once this one is sealed
  bool replaced_checked = false;  // sharing the place of what it replaced did not work out: write it
  int64_t last_write_ns = 0;      // monotonic
  FilePtr raw;                    // set for raw bodies
  bool raw_unjournaled = false;   // no record names its file yet
  FilePtr spill;                  // a solo extent that takes what does not fit in memory
  ExtentId spill_extent;
  std::vector<bool> spill_written;  // units the spill file has bytes of, current or not: no holes there
  std::map<size_t, std::vector<std::move_only_function<void(Status)>>> loading;  // by unit: who waits for the read
  uint32_t handles = 0;           // open
  uint32_t write_handles = 0;     // of them for writing
  uint32_t unflushed_handles = 0; // of them written (or created) and not flushed since
  bool kept_for_rename = false;   // written a moment ago and not renamed yet: its writer may be about to do so
  uint32_t kept_for_repeat = 0;   // a call that was told kStale found it, and opens it next
  bool lingering = false;         // replaced a moment ago: can still be opened, though it has no name
  uint32_t changes_in_place = 0;  // since it is whole, see store_in_place.cc
  bool forgotten = false;         // not in the table any more, where the same object may be anew: nothing is put in here
  uint64_t read_bytes = 0, opens = 0;
  std::vector<std::pair<size_t, size_t>> wanted;  // units [first, last) that reads wait for: not evicted under them

  // --- guarded by the namespace lock ---
  ChainOrigin origin;  // where it stands in its chain
  uint32_t nlink = 0;
  std::atomic<bool> durable{false};  // the journal knows it. (atomic: asked for with either lock)
  bool published = false;     // was renamed or linked to, or found in the index
  std::atomic<int64_t> relookup_until_ns{0};  // (atomic) until then an open by this nodeid is told kStale: the kernel's name
                                              // cache may be wrong
  std::atomic<int64_t> moved_ns{INT64_MIN / 2};  // (atomic) last renamed: a truncating open by this nodeid soon after may
                                                 // mean the old name
  bool awaiting_open = false;      // (mutex) a fresh version whose maker's open is on its way: counted as unflushed
  ObjectId replaced;          // what a rename put it in place of: perhaps the same bytes
  uint32_t writer_thread = 0; // that created this version of its name
  uint32_t writer_process = 0;  // of that thread; 0: not asked for yet
  bool contended = false;     // another version of its name was made beside it
  bool temporary = false;     // its name is one that clients rename: several writers get a version each
  std::atomic<bool> locked{false};    // (atomic) somebody took a lock of it
  std::atomic<bool> in_place{false};  // (atomic) it changes where it is, so it is no chunk (store_in_place.cc); set with `mutex` held

  bool is_regular() const { return type_bits == 0100000; }
  bool is_directory() const { return type_bits == 0040000; }
  // With `mutex` held:
  // Something on the volume may come back by what becomes of this one; not what was only set aside for it.
  bool holds_room() const { return base.place.kind != PlaceKind::kNone || replaces; }
  bool content_dirty() const { return content_version != sealed_version; }
  // Dirty only because its extent could not be synced (store_lost.cc).
  bool is_moving() const { return content_dirty() && moving_version == content_version; }
  uint64_t journaled_version() const { return is_moving() ? content_version : sealed_version; }
  bool any_in_ram() const {
    return std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.block != nullptr; });
  }
  bool in_ram() const {
    const size_t count = div_ceil(size_bytes, kUnitBytes);
    return count > 0 && units.size() >= count &&
           std::all_of(units.begin(), units.begin() + static_cast<long>(count), [](const Unit& unit) { return unit.block != nullptr; });
  }
  bool finished() const { return unflushed_handles == 0; }
  // The record of a raw body says where it is and how long, whoever is writing it; one that only moves was recorded before.
  bool can_be_recorded() const { return raw || finished() || is_moving(); }
  bool promises_room() const { return allocated_to > 0 && write_handles > 0 && !raw; }
  void note_allocated(uint64_t from, uint64_t to) {
    allocated_from = allocated_to > 0 ? std::min(allocated_from, from) : from;
    allocated_to = std::max(allocated_to, to);
  }
  void cut_allocated(uint64_t size) {
    allocated_to = std::min(allocated_to, size);
    if (allocated_from >= allocated_to) allocated_from = allocated_to = 0;
  }
  bool lacks_a_write() const { return write_error && !write_error->undone; }
  // A body that lacks what a write failed to put into it stays in RAM; an emptied one tells its readers the truth.
  bool sealable() const { return !lacks_a_write() || size_bytes == 0; }
  void note_failed_write(const Error& error, uint64_t begin = 0, uint64_t end = UINT64_MAX) {
    if (write_error)
      write_error->note(error, begin, end);
    else
      write_error = FailedWrite{error, begin, end};
  }
  void note_written(uint64_t begin, uint64_t end) {
    if (write_error && write_error->covered_by(begin, end)) write_error.reset();
  }
  bool is_wanted(size_t index) const {
    for (const auto& [first, last] : wanted)
      if (index >= first && index < last) return true;
    return false;
  }
  void add_handle() {
    if (handles++ == 0) pin_frozen();
  }
  bool drop_handle() {  // true: it was the last
    if (--handles > 0) return false;
    pin_frozen();
    return true;
  }
  // A frozen file is not given up while somebody has the body open (evict_clean()): the sum of what can be is told.
  void pin_frozen() {
    if (!may_be_frozen) return;  // most bodies, at each open and close
    for (const Unit& unit : units) {
      if (!unit.block || !unit.block->frozen()) continue;
      return unit.block->file()->set_pinned(handles > 0);
    }
    may_be_frozen = false;
  }
  // The new end lies in a unit, of which the rest becomes zeros.
  bool is_cut_in_a_unit(uint64_t new_size_bytes) const { return new_size_bytes < size_bytes && new_size_bytes % kUnitBytes != 0; }
  Unit* unit_or_null(size_t index) { return index < units.size() ? &units[index] : nullptr; }
  // The unit has bytes on the volume that are not in RAM.
  bool needs_load(size_t index) {
    const Unit* unit = unit_or_null(index);
    if (unit != nullptr && (unit->block || unit->dirty)) return false;
    if (unit != nullptr && unit->spilled) return true;
    return !raw && index * kUnitBytes < base_valid_bytes;
  }
};
using ObjectPtr = std::shared_ptr<Object>;

class Handle {
 public:
  ObjectPtr object;
  OpenRequest request;
  uint32_t thread_id = 0;
  // Guarded by object->mutex:
  bool unflushed = false;
  uint8_t weight_of_changes = 0;  // of what it has not changed yet, see store_in_place.cc
  bool kernel_cuts = false;  // a write failed: the next truncation by this handle may be the kernel's own

  void note_failed_write() {  // object->mutex not held
    std::lock_guard lock(object->mutex);
    kernel_cuts = true;
  }
};

// What a body was at one moment: holds its blocks, so that it can be written while the object changes.
struct Snapshot {
  ObjectPtr object;
  uint64_t size_bytes = 0;
  std::vector<Unit> units;
  Body base;
  uint64_t base_valid_bytes = 0;
  FilePtr spill;
  ExtentId spill_extent;
  std::vector<bool> spill_written;
  bool raw = false;
  uint64_t content_version = 0;
};

}  // namespace kvcachefs
