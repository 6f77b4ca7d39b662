// An object while it is in RAM: open, changed since it was last journaled, or with bytes cached. Everything else about
// objects is in the index.
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
  const uint32_t type_bits;  // of attributes.mode: fixed, so that they can be asked for without a lock
  // Of the first version of its temporary name. From its rename on its own, where no lock was taken.
  std::atomic<ObjectId> lock_identity = id;

  // Guards the members down to the next line, and every method below but those of the ids. Taken after that of the Tree,
  // before leaf locks; one object at a time.
  [[nodiscard]] Lock lock() const { return Lock(mutex_); }

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
  uint64_t sealed_version = 0, moving_version = 0;  // content_version the base holds (unequal: dirty); one that is sealed once more
  uint64_t named_version = 0;     // content_version when it was last renamed or linked: such a name says at least that
  uint64_t attributes_version = 0, attributes_durable = 0;
  // What RecordSpace counts for it: accepted for the next record of its attributes; and set aside for the one that comes with its first body.
  uint64_t accepted_bytes = 0, awaiting_body_bytes = 0;
  UnjournaledXattrs unjournaled_xattrs;
  uint64_t shrunk_to_bytes = UINT64_MAX;  // least size since the last snapshot
  uint64_t reserved_bytes = 0, sealing_reserved_bytes = 0;  // of the volume's space, for the next seal; for the one under way
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
  bool extent_is_long_enough = false;  // its file was seen to have the body's length; or it is new
  bool may_be_frozen = false;  // blocks of it may be of a memory file that was passed through
  bool outdated = false;          // of a peer, which has replaced it since: it is forgotten with its last handle
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
  bool lingering = false, leased = false;  // replaced a moment ago: can still be opened, though it has no name; or see Tree::Write::keep_leased()
  uint32_t changes_in_place = 0;  // since it is whole, see requests/in_place_changes.h
  uint32_t rewriters = 0;         // open handles that changed it without O_TRUNC: whether as a whole shows when they close it
  std::unique_ptr<FirstWrites> first_writes;  // null: not to be judged, see requests/in_place_changes.h
  bool forgotten = false;         // not in the table any more, where the same object may be anew: nothing is put in here
  uint64_t read_bytes = 0, opens = 0;
  std::vector<std::pair<size_t, size_t>> wanted;  // units [first, last) that reads wait for: not evicted under them

  // --- guarded by the lock of the Tree ---
  ChainOrigin origin;  // where it stands in its chain
  uint32_t nlink = 0;
  std::atomic<bool> durable{false};  // the journal knows it. (atomic: asked for with either lock)
  bool published = false;     // was renamed or linked to, or found in the index
  std::atomic<int64_t> relookup_until_ns{0};  // (atomic) until then an open by this nodeid is told kStale: the kernel's name
                                              // cache may be wrong
  std::atomic<int64_t> moved_ns{INT64_MIN / 2};  // (atomic) last renamed: a truncating open by this nodeid soon after may
                                                 // mean the old name
  bool awaiting_open = false;      // (object's lock) a fresh version whose maker's open is on its way: counted as unflushed
  ObjectId replaced;          // what a rename put it in place of: perhaps the same bytes
  uint32_t writer_thread = 0; // that created this version of its name
  uint32_t writer_process = 0;  // of that thread; 0: not asked for yet
  bool contended = false;     // another version of its name was made beside it
  bool temporary = false;     // its name is one that clients rename: several writers get a version each
  std::atomic<bool> locked{false};    // (atomic) somebody took a lock of it
  // (atomic; set with the lock held) It changes where it is, so the kernel may not read it past the daemon; and what then was changed in
  // part as well is no chunk, nor is what was `patched` while it was filled (requests/in_place_changes.h).
  std::atomic<bool> in_place{false}, changed_in_part{false}, patched{false};

  bool is_regular() const { return type_bits == 0100000; }
  bool is_directory() const { return type_bits == 0040000; }
  // With the lock held:
  // Something on the volume may come back by what becomes of this one; not what was only set aside for it.
  bool holds_room() const { return base.place.kind != PlaceKind::kNone || replaces; }
  bool content_dirty() const { return content_version != sealed_version; }
  // Dirty only because its extent could not be synced: it moves elsewhere.
  bool is_moving() const { return content_dirty() && moving_version == content_version; }
  uint64_t journaled_version() const { return is_moving() ? content_version : sealed_version; }
  bool any_in_ram() const {
    return std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.block != nullptr; });
  }
  bool in_ram() const;  // all of it
  bool finished() const { return unflushed_handles == 0; }
  // The record of a raw body says where it is and how long, whoever is writing it; one that only moves was recorded before.
  bool can_be_recorded() const { return raw || finished() || is_moving(); }
  bool promises_room() const { return allocated_to > 0 && write_handles > 0 && !raw; }
  void note_allocated(uint64_t from, uint64_t to);
  void cut_allocated(uint64_t size);
  bool lacks_a_write() const { return write_error && !write_error->undone; }
  // A body that lacks what a write failed to put into it stays in RAM; an emptied one tells its readers the truth.
  bool sealable() const { return !lacks_a_write() || size_bytes == 0; }
  void note_failed_write(const Error& error, uint64_t begin = 0, uint64_t end = UINT64_MAX);
  void note_written(uint64_t begin, uint64_t end) {
    if (write_error && write_error->covered_by(begin, end)) write_error.reset();
  }
  bool is_wanted(size_t index) const;
  void add_handle() {
    if (handles++ == 0) pin_frozen();
  }
  bool drop_handle();  // true: it was the last
  // A frozen file is not given up while somebody has the body open (evict_clean()): the sum of what can be is told.
  void pin_frozen();
  // The new end lies in a unit, of which the rest becomes zeros.
  bool is_cut_in_a_unit(uint64_t new_size_bytes) const { return new_size_bytes < size_bytes && new_size_bytes % kUnitBytes != 0; }
  bool is_cut_in_the_spill_file(uint64_t new_size_bytes) const;  // ... which has bytes of that unit behind the new end, and RAM has none of it
  Unit* unit_or_null(size_t index) { return index < units.size() ? &units[index] : nullptr; }
  const Unit* unit_or_null(size_t index) const { return index < units.size() ? &units[index] : nullptr; }
  // The unit has bytes on the volume that are not in RAM.
  bool needs_load(size_t index) const;

  // --- bytes in RAM (object.cc). None blocks; memory is reserved by the caller before. ---
  // The block of the unit cannot be written up to `end`: it is too small, frozen, or held by others.
  bool takes_new_block(size_t index, uint64_t end) const;
  bool clones_a_block(size_t first, size_t last, uint64_t end) const;
  uint64_t memory_for_piece(size_t index, uint64_t begin, uint64_t end) const;
  void place_piece(size_t index, uint64_t begin, uint64_t end, const std::byte* bytes, Reservation& memory);
  // Bytes of RAM units from there on become zeros; none are cut in the spill file. Of `memory` it takes a unit at most.
  void zero_tail(uint64_t from, Reservation& memory);
  void note_cut(uint64_t new_size_bytes, Resize how);  // the size is still the old one
  bool lacks_file_memory(size_t first, size_t last, FileRequest& file);
  MemoryFilePtr whole_in_file() const;
  // All of its units are in its memory file, or on their way there.
  bool comes_into_file() const;
  ReadPlan plan_read(uint64_t offset, size_t length);
  // A unit that was read and verified; `stored_bytes` of the block are it. needs_load(index) is true.
  void place_loaded(size_t index, BlockPtr block, uint64_t stored_bytes, bool from_spill_file);
  DroppedBlocks drop_clean();
  // The body as it is, to be written; what was reserved for it goes along. Nothing else seals it until the seal has ended.
  Snapshot begin_seal(const ObjectPtr& self);
  // `sealed` is the base now: a unit whose block is still the one that was written is clean; any other is newer, or was read
  // from the spill file. True: some unit is clean.
  bool settle_units(const Snapshot& sealed);
  // Up to `most` dirty units from `next` on, which moves behind them.
  std::vector<SpillPiece> spill_pieces(size_t& next, size_t most);
  // They are in the spill file. The blocks that the body does not need any more; let go of them without the lock.
  std::vector<BlockPtr> settle_spilled(std::span<const SpillPiece> pieces);

 private:
  mutable Mutex<LockRank::kObject> mutex_;
};

}  // namespace kvcachefs
