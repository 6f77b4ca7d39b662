// An object in RAM: it is open, has changes that are not journaled, or has bytes cached. All other objects are in the index
// only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/chain/origin.h"
#include "store/memory/memory_file.h"
#include "store/memory/pool.h"
#include "store/object/failed_write.h"
#include "store/object/file_request.h"
#include "store/object/first_writes.h"
#include "store/object/plans.h"
#include "store/object/unit.h"
#include "store/space/record_space.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Object;
using ObjectPtr = std::shared_ptr<Object>;
struct Snapshot;

class Object {
 public:
  using Lock = std::unique_lock<Mutex<LockRank::kObject>>;

  Object(ObjectId object_id, Attributes initial)
      : id(object_id), type_bits(initial.mode & 0170000), attributes(std::move(initial)) {}

  const ObjectId id;
  const uint32_t type_bits;  // of attributes.mode: fixed, so that they can be read without a lock
  // The id of the first version of its temporary name. A rename makes it the object's own id, if no lock was taken.
  std::atomic<ObjectId> lock_identity = id;

  // Guards the members down to the line "guarded by the lock of the Tree", and every method but those of the ids. Taken after
  // the lock of the Tree and before leaf locks; a thread locks one object at a time.
  [[nodiscard]] Lock lock() const { return Lock(mutex_); }

  Attributes attributes;
  uint64_t size_bytes = 0;
  Body base;                      // as last journaled (or found in the index)
  uint64_t base_valid_bytes = 0;  // length of the base that truncation has not cut off since
  int64_t base_mtime_ns = 0, base_ctime_ns = 0;  // its times, while the content is dirty: see BatchBuilder
  MemoryFilePtr memory_file;      // new units become blocks of this file; null: of the pool
  uint64_t expected_bytes = 0;    // > 0: to be placed in a memory file for about so many bytes
  uint64_t size_key = 0;          // key under which SizeGuess knows the sizes of bodies of its kind
  bool to_be_moved = false;       // into a memory file: clients map it
  std::vector<Unit> units;        // may be shorter than the body: missing units have no block
  uint64_t content_version = 0;   // rises with every change of bytes or size
  uint64_t sealed_version = 0, moving_version = 0;  // content_version that the base holds (unequal: dirty); one that is sealed again to move
  uint64_t named_version = 0;     // content_version at the last rename or link: the name must show at least that version
  uint64_t attributes_version = 0, attributes_durable = 0;
  // Bytes that RecordSpace counts for it: accepted for the next record of its attributes; set aside for the record that comes with its first body.
  uint64_t accepted_bytes = 0, awaiting_body_bytes = 0;
  UnjournaledXattrs unjournaled_xattrs;
  uint64_t shrunk_to_bytes = UINT64_MAX;  // least size since the last snapshot
  uint64_t reserved_bytes = 0, sealing_reserved_bytes = 0;  // space on the volume for the next seal; for the seal under way
  // The range that fallocate gave blocks, as far as known: [allocated_from, allocated_to). While the body is open for writing, kept_bytes
  // are reserved for it beside reserved_bytes, so that a write in the range finds room, also after the body was sealed.
  uint64_t allocated_from = 0, allocated_to = 0, kept_bytes = 0;
  // A write failed: rename and link fail until the missing bytes were written or the body was emptied; fsync and close fail until
  // then, or until the body was undone.
  std::optional<FailedWrite> write_error;
  bool written_anew = true;       // it has been empty since its present writers opened it, and none called fsync: no journaled version of it is whole
  bool sealing = false;           // one seal at a time, from snapshot to commit
  bool in_dirty_queue = false;
  bool extent_is_long_enough = false;  // its file was seen to have the body's length, or is new
  bool may_be_frozen = false;  // its blocks may be of a memory file that was passed through
  std::atomic<ObjectId> outdated{};  // valid: its node, a peer, gave the object another body since. The Tree has this one by this id while it is used
  bool goes_when_loaded = false;  // removed while reads of it were under way: leaves the table with the last of them
  bool replaces = false;          // a rename put it in the place of another object, which goes once that is journaled
  bool replaced_checked = false;  // it could not share the place of the object that it replaced: write it
  int64_t last_write_ns = 0;      // monotonic
  FilePtr raw;                    // set for raw bodies
  bool raw_unjournaled = false;   // no record names its file yet
  FilePtr spill;                  // a solo extent for the units that do not fit in memory
  ExtentId spill_extent;
  std::vector<bool> spill_written;  // units of which the spill file has bytes, current or not: no holes there
  std::map<size_t, std::vector<std::move_only_function<void(Status)>>> loading;  // units being read, with the callers that wait for them
  uint32_t handles = 0;           // open
  uint32_t write_handles = 0;     // of these, open for writing
  uint32_t unflushed_handles = 0; // of these, written (or created) and not flushed since
  uint32_t synced_handles = 0;    // of the unflushed, those that wrote nothing since they called fsync
  bool kept_for_rename = false;   // written a moment ago and not renamed yet: its writer may be about to do so
  uint32_t kept_for_repeat = 0;   // calls that were answered kStale, found it by their lookup, and will open it; calls that wait for room
  bool lingering = false, leased = false;  // replaced a moment ago: can still be opened, though it has no name; or see Tree::Write::keep_leased()
  uint32_t changes_in_place = 0;  // since it was whole, see requests/in_place_changes.h
  uint32_t rewriters = 0;         // open handles that changed it without O_TRUNC: their close shows whether they rewrote all of it
  std::unique_ptr<FirstWrites> first_writes;  // null: not to be judged, see requests/in_place_changes.h
  bool forgotten = false;         // it left the table, which may have a new Object for the same id: nothing is loaded into this one
  uint64_t read_bytes = 0, opens = 0;
  std::vector<std::pair<size_t, size_t>> wanted;  // units [first, last) that reads wait for: not evicted meanwhile

  // --- guarded by the lock of the Tree ---
  ChainOrigin origin;  // its position in its chain
  uint32_t nlink = 0;
  std::atomic<bool> durable{false};  // the journal knows it. (atomic: read with either lock)
  bool published = false;     // was renamed or linked, or found in the index
  std::atomic<int64_t> relookup_until_ns{0};  // (atomic) until then an open by this nodeid is answered kStale: the kernel's name cache may be wrong
  std::atomic<int64_t> moved_ns{INT64_MIN / 2};  // (atomic) time of its last rename: a truncating open by this nodeid soon after may mean the old name
  bool awaiting_open = false;      // (object's lock) a new version that its maker is about to open: counted as unflushed
  ObjectId replaced;          // the object that a rename put it in the place of: it may have the same bytes
  uint32_t writer_thread = 0; // created this version of its name; set by note_writer(), with
  uint32_t writer_process = 0;  // that of the thread, which may have ended since; 0: not known
  bool contended = false;     // another version of its name was made beside it
  bool temporary = false;     // its name is a temporary one, which clients rename: each of several writers gets a version
  bool was_temporary = false; // ... until it was renamed: what was journaled before is a part of a file, unless all of it was
  std::atomic<bool> locked{false};    // (atomic) a client took a lock on it
  // (atomic; set with the object's lock held) in_place: the kernel may not read it past the daemon. If also changed_in_part, or `patched` while filled: no chunk.
  std::atomic<bool> in_place{false}, changed_in_part{false}, patched{false};

  bool is_regular() const { return type_bits == 0100000; }
  bool is_directory() const { return type_bits == 0040000; }
  // With the lock held:
  // A change of this object can free space on the volume (beyond its reservations): it has a place there, or replaces another object.
  bool holds_room() const { return base.place.kind != PlaceKind::kNone || replaces; }
  bool content_dirty() const { return content_version != sealed_version; }
  // Dirty only because its bytes have to move elsewhere (Relocator).
  bool is_moving() const { return content_dirty() && moving_version == content_version; }
  uint64_t journaled_version() const { return is_moving() ? content_version : sealed_version; }
  bool any_in_ram() const {
    return std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.block != nullptr; });
  }
  bool in_ram() const;  // all of it
  bool finished() const { return unflushed_handles == 0; }
  // The record of a raw body holds only its place and length, so it may be written meanwhile; a body that only moves was recorded before.
  // A writer that synced all that it wrote, and is silent, holds back no change that another program made since.
  bool can_be_recorded() const { return raw || unflushed_handles == synced_handles || is_moving(); }
  bool promises_room() const { return allocated_to > 0 && write_handles > 0 && !raw; }
  void note_allocated(uint64_t from, uint64_t to);
  void cut_allocated(uint64_t size);
  bool lacks_a_write() const { return write_error && !write_error->undone; }
  // A body that lacks the bytes of a failed write is not sealed and stays in RAM, unless it is empty (no reader is misled), or raw: it is no copy.
  bool sealable() const { return !lacks_a_write() || size_bytes == 0 || raw; }
  void note_failed_write(const Error& error, uint64_t begin = 0, uint64_t end = UINT64_MAX);
  void note_written(uint64_t begin, uint64_t end) {
    if (write_error && write_error->covered_by(begin, end)) write_error.reset();
  }
  bool is_wanted(size_t index) const;
  void add_handle() {
    if (handles++ == 0) pin_frozen();
  }
  bool drop_handle();  // true: it was the last
  // Pins the frozen file while the body is open: it cannot be dropped then, so the pool's sum of clean bytes does not count it.
  void pin_frozen();
  // The new end lies inside a unit; the rest of the unit becomes zeros.
  bool is_cut_in_a_unit(uint64_t new_size_bytes) const { return new_size_bytes < size_bytes && new_size_bytes % kUnitBytes != 0; }
  bool is_cut_in_the_spill_file(uint64_t new_size_bytes) const;  // ... and only the spill file has that unit, with bytes behind the new end
  Unit* unit_or_null(size_t index) { return index < units.size() ? &units[index] : nullptr; }
  const Unit* unit_or_null(size_t index) const { return index < units.size() ? &units[index] : nullptr; }
  // The unit has bytes on the volume that are not in RAM.
  bool needs_load(size_t index) const;

  // --- bytes in RAM (object.cc). None blocks; memory is reserved by the caller before. ---
  // The block of the unit cannot be written up to `end`: there is none, or it is too small, frozen, or has other holders.
  bool takes_new_block(size_t index, uint64_t end) const;
  bool clones_a_block(size_t first, size_t last, uint64_t end) const;
  uint64_t memory_for_piece(size_t index, uint64_t begin, uint64_t end) const;
  void place_piece(size_t index, uint64_t begin, uint64_t end, const std::byte* bytes, Reservation& memory);
  // Zeros the rest of the unit that `from` lies in, if it is in RAM; the spill file is not touched. Takes at most one unit of `memory`.
  void zero_tail(uint64_t from, Reservation& memory);
  void note_cut(uint64_t new_size_bytes, Resize how);  // the size is still the old one
  bool lacks_file_memory(size_t first, size_t last, FileRequest& file);
  MemoryFilePtr whole_in_file() const;
  // All of its units are in its memory file, or on their way there.
  bool comes_into_file() const;
  ReadPlan plan_read(uint64_t offset, size_t length);
  // Takes in a unit that was read and verified: the first `stored_bytes` of the block. needs_load(index) is true.
  void place_loaded(size_t index, BlockPtr block, uint64_t stored_bytes, bool from_spill_file);
  DroppedBlocks drop_clean();
  // The body as it is, to be written; its reserved space goes with it. No other seal of it begins until this one has ended.
  Snapshot begin_seal(const ObjectPtr& self);
  // `sealed` is the base now: a unit that still has the block that was written is clean; any other block is newer, or was read
  // from the spill file. Returns whether some unit is clean.
  bool settle_units(const Snapshot& sealed);
  // Up to `most` dirty units from `next` on; moves `next` behind them.
  std::vector<SpillPiece> spill_pieces(size_t& next, size_t most);
  // The pieces are in the spill file. Returns the blocks that the body does not need any more; release them without the lock.
  std::vector<BlockPtr> settle_spilled(std::span<const SpillPiece> pieces);

 private:
  mutable Mutex<LockRank::kObject> mutex_;
};

}  // namespace kvcachefs
