// The index of a node: namespace, objects, extent usage and successors in one LMDB environment. It is a function of
// checkpoint and journals (invariant 4): disposable, and rebuilt when it is missing, too old or damaged.
//
// Writes go to a RAM overlay by apply() and reach LMDB by commit(), in one synced transaction that also holds the journal
// position reached; never WRITEMAP, never NOSYNC, never on a network file system (invariant 11). Nothing else in the
// project includes lmdb.h.
//
// Threads: every const member may be called from any thread. apply() calls are serialised by the caller; commit() is
// called from one thread at a time and may run beside apply() and reads. Reads never block on commit().
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"

namespace kvcachefs {

// Order of names in a directory and readdir cookie: 63-bit hash of the name (stable while names come and go; the same
// name always has the same cookie). Never 0, 1 or 2 (root "." "..") and below 2^63 - 1.
uint64_t name_cookie(std::string_view name);

struct NameEntry {
  std::string name;
  ObjectId child;
  uint32_t type_bits = 0;  // S_IFMT part of the child's mode
  uint64_t cookie = 0;
};

struct ExtentUsage {
  PlaceKind kind = PlaceKind::kNone;
  uint64_t live_bytes = 0;    // of 4 KiB-rounded places that live objects name
  uint64_t bodies = 0;
  ObjectId object;            // the one body of a solo or raw extent
};

// What is left to give back and what no record tells: which extents of earlier lives were looked through, which of those
// without a record still lie there. Kept in the transaction of the position that it belongs to, and no longer than that: lost
// with the index, and when a program that does not know it committed since.
struct Leftovers {
  uint32_t swept_epoch = 0;  // of it and the epochs before it no extent is without a record, but for `extents`
  bool in_packs = false;     // packs may hold blocks that no record names
  struct Extent {
    ExtentId id;
    PlaceKind kind = PlaceKind::kNone;
    bool operator==(const Extent&) const = default;
  };
  std::vector<Extent> extents;
  bool unlisted = false;  // epochs after that have such extents, too: also a start after a clean end lists them
  bool operator==(const Leftovers&) const = default;
};

// How far a pass over all bodies, which verifies them, has come. Kept with each commit, and lost with the index.
struct ScrubMark {
  ObjectId after;          // bodies up to it were verified in the pass under way
  int64_t begun_ns = 0;    // realtime; 0: none is under way
  int64_t ended_ns = 0;    // of the last whole pass; 0: there was none
  bool operator==(const ScrubMark&) const = default;
};

struct IndexTotals {
  uint64_t objects = 0, directories = 0;
  uint64_t inline_bodies = 0, packed_bodies = 0, solo_bodies = 0, raw_bodies = 0, quarantined = 0;
  uint64_t live_bytes = 0;     // on the volume: places rounded to 4 KiB (raw: as of its records)
  uint64_t logical_bytes = 0;  // sum of file sizes
};

struct IndexIdentity {
  std::array<std::byte, 16> volume_uuid{};
  std::string node;
};

class Index {
 public:
  enum class Found : uint8_t {
    kFresh,    // nothing there: empty, position {0,0,0}; load a checkpoint and replay
    kOpened,   // position() tells how far it reaches
  };
  // Opens or creates the environment in `directory` (absolute path, on a local file system; kUnsupported otherwise). One that
  // cannot be opened, belongs to another volume or node, has another format or fails its checks is moved aside to
  // "<directory>.damaged" (an older one there is removed) and a fresh one is made; `why` then says so.
  static Result<std::unique_ptr<Index>> open(const std::string& directory, const IndexIdentity& identity, Found* found,
                                             std::string* why);
  virtual ~Index() = default;

  // Whether what was opened had been closed by close_clean(). False also for one that was made new.
  virtual bool was_closed_cleanly() const = 0;
  virtual JournalPosition position() const = 0;   // committed to LMDB
  virtual Stamp stamp() const = 0;                // newest applied
  virtual IndexTotals totals() const = 0;         // overlay included; O(1)
  // Highest object number of `epoch` ever applied, highest extent seq of it. 0 if none.
  virtual uint64_t highest_number(uint32_t epoch) const = 0;
  virtual uint64_t highest_extent(uint32_t epoch) const = 0;

  // Reads see everything applied. Damage of a row or page is kCorrupt for what needs it; all else is answered as before (the
  // owner then rebuilds; see damaged()).
  virtual Result<std::optional<NameEntry>> find_name(ObjectId parent, std::string_view name) const = 0;
  virtual Result<std::optional<ObjectRecord>> find_object(ObjectId id) const = 0;
  // Only the attributes, size and place summary (no checksums, no inline bytes): what stat needs.
  virtual Result<std::optional<ObjectRecord>> find_object_summary(ObjectId id) const = 0;
  // Names of a directory with cookie > `after`, ascending, about `limit` of them: names of equal cookie are never
  // split between two calls.
  virtual Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const = 0;
  virtual Result<bool> is_empty(ObjectId directory) const = 0;
  virtual Result<std::optional<SuccessorsRecord>> find_successors(ObjectId id) const = 0;
  virtual Result<std::optional<ExtentUsage>> find_extent(ExtentId id) const = 0;
  // Reads what is looked up into memory, as far as it is small, and keeps it there. Blocks; a hint.
  virtual void keep_in_memory() const = 0;
  // To be called now and then: what was looked up beside that is the kernel's page cache, not memory of this process. Each commit does it, too.
  virtual void let_go_of_mapped() const = 0;
  // Of the file, as far as it was committed: what nothing is in. It is used again, but the file does not become smaller by itself. Cheap.
  virtual uint64_t unused_bytes() const = 0;
  // Writes the file anew without what is unused_bytes(), in place of the one that is there; reads go on meanwhile, commits wait. False: it stays
  // as it is (damaged, very large, or no room for both). By the thread that commits.
  virtual bool give_back_unused() = 0;
  // True once a read or commit found LMDB damaged, until finish_rebuild(): commits are refused, position() stays.
  virtual bool damaged() const = 0;
  // A batch of the journal could not be applied: commits are refused until the next open, which replays the journals from
  // position() on. damaged() stays true.
  virtual void give_up_commits() = 0;
  // An empty index beside a damaged one, to be filled from checkpoint and journals up to position(), no further. Takes the
  // place of one that was begun before and not finished. Both block on the directory's file system; reads go on meanwhile.
  virtual Result<std::unique_ptr<Index>> begin_rebuild() = 0;
  // What was `filled` takes the place of the damaged file, below what was applied since position(). On error the damaged one
  // stays, and another rebuild can be begun.
  virtual Status finish_rebuild(std::unique_ptr<Index> filled) = 0;

  // Applies one journaled batch to the overlay: names, nlink counts (of files and of parent directories), objects that lost
  // their last name are removed with their successors row, extent usage. `after` is the journal position behind it.
  // A name whose child is unknown, an unname of another child and attributes of an unknown object are ignored (they
  // occur when a body was found absent at recovery). A put of a file object stays invisible until a name arrives;
  // objects without any name are listed by scan_nameless(). Directory entries removed with the directory itself
  // must have gone before.
  virtual Result<std::vector<FreedPlace>> apply(const Batch& batch, JournalPosition after) = 0;
  // What was applied so far is what the next commit() writes; later batches wait for the one after. Cheap.
  virtual void freeze() = 0;
  // Overlay -> LMDB, synced: what was applied before the last freeze() (without one since the last commit: before the call). On error (disk full) nothing is lost: the
  // overlay keeps it and a later commit tries again.
  virtual Status commit() = 0;
  virtual uint64_t overlay_rows() const = 0;
  // What the next commit adds to the file: about, and rather too much. Looks at each row of the overlay.
  virtual uint64_t growth_bytes() const = 0;
  // As it was committed with position(); none if nobody told, or not since. To be told before a commit(), which writes what
  // was told last, by the thread that commits.
  virtual std::optional<Leftovers> leftovers() const = 0;
  virtual void set_leftovers(Leftovers leftovers) = 0;
  // Any thread; goes with the next commit that has rows to write, or with the close.
  virtual ScrubMark scrub_mark() const = 0;
  virtual void set_scrub_mark(const ScrubMark& mark) = 0;

  // Bulk load of a checkpoint into a fresh index: records arrive in checkpoint order (objects by id, names by (parent,
  // cookie, name), successors by id, then what scan_peer_records() gives); much faster than apply(). finish_load commits everything with the position.
  virtual Status begin_load() = 0;
  virtual Status load(Record&& record) = 0;
  virtual Status finish_load(JournalPosition position, Stamp stamp) = 0;

  // Full scans of the committed state, in key order, for checkpoints and fsck: the caller sees to it that no commit runs
  // meanwhile (a read transaction held across commits makes the file grow). A false return of the callback stops.
  virtual Status scan_objects(const std::function<bool(ObjectRecord&&)>& row) const = 0;
  virtual Status scan_names(const std::function<bool(NameRecord&&)>& row) const = 0;
  virtual Status scan_successors(const std::function<bool(SuccessorsRecord&&)>& row) const = 0;
  virtual Status scan_extents(const std::function<bool(ExtentId, const ExtentUsage&)>& row) const = 0;
  // What was exchanged with other nodes: how far each one's statements are answered (SeenRecord, by node), then this node's own
  // that are not known to be answered (StatementRecord, in the order in which they were said).
  virtual Status scan_peer_records(const std::function<bool(Record&&)>& row) const = 0;
  // Ids of committed objects behind `after`, ascending; beside commits. What was applied since is not there, or there still.
  virtual Result<std::vector<ObjectId>> objects_after(ObjectId after, size_t limit) const = 0;
  // What was said of `node`'s objects up to that position of this index's journals is not kept any more: it is answered. As apply(): the
  // next commit writes it. (A replay of the journals brings it back, which does no harm.)
  virtual Status forget_statements(std::string_view node, JournalPosition answered) = 0;
  // Objects without a name (nlink 0), left by a crash between put and name.
  virtual Result<std::vector<ObjectId>> scan_nameless() const = 0;

  // Marks a clean close (with a checksum of the file where that is cheap to check at the next open) and closes.
  virtual Status close_clean() = 0;
};

// kExists if `directory` holds anything but an index of this program's: files of others, another program's LMDB, links. Changes
// nothing; an absent or empty one is fine.
Status check_index_directory(const std::string& directory);
// Whether an index may be made there: the reason if not. Leaves nothing. For what a user chose, before anything else is made.
Status check_index_place(const std::string& directory);
// Removes an index that nobody has open; the next open makes it anew, for checkpoint and journals. kExists, and nothing is
// removed, if the directory holds anything else.
Status remove_index(const std::string& directory);

}  // namespace kvcachefs
