// The index of a node: namespace, objects, extent usage and successors in one LMDB environment. It is a function of
// checkpoint and journals (invariant 4): disposable, and rebuilt when it is missing, too old or damaged.
//
// apply() writes to a RAM overlay; commit() moves the overlay to LMDB in one synced transaction that also holds the journal
// position reached. Never WRITEMAP, never NOSYNC, never on a network file system (invariant 11). Nothing else in the
// project includes lmdb.h.
//
// Threads: every const member may be called from any thread. The caller serialises apply() calls. One thread at a time calls
// commit(), which may run beside apply() and reads. Reads never wait for commit().
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
#include "store/index/leftovers.h"

namespace kvcachefs {

// A 63-bit hash of the name: the order of names in a directory, and the readdir cookie. Stable while names come and go, for one
// name always has the same cookie. Never 0, 1 or 2 (root "." "..") and below 2^63 - 1.
uint64_t name_cookie(std::string_view name);

struct NameEntry {
  std::string name;
  ObjectId child;
  uint32_t type_bits = 0;  // S_IFMT part of the child's mode
  uint64_t cookie = 0;
};

struct ExtentUsage {
  PlaceKind kind = PlaceKind::kNone;
  uint64_t live_bytes = 0;    // of the places of live objects, rounded up to 4 KiB
  uint64_t bodies = 0;
  ObjectId object;            // the one body of a solo or raw extent
};

// Progress of the scrub (the pass that verifies all bodies). Kept with each commit; lost with the index.
struct ScrubMark {
  ObjectId after;          // the pass under way has verified the bodies up to this one
  int64_t begun_ns = 0;    // realtime; 0: no pass is under way
  int64_t ended_ns = 0;    // end of the last whole pass; 0: there was none
  bool operator==(const ScrubMark&) const = default;
};

struct IndexTotals {
  uint64_t objects = 0, directories = 0;
  uint64_t inline_bodies = 0, packed_bodies = 0, solo_bodies = 0, raw_bodies = 0, quarantined = 0;
  uint64_t live_bytes = 0;     // on the volume: places rounded to 4 KiB (raw: size as in its records)
  uint64_t logical_bytes = 0;  // sum of file sizes
};

struct IndexIdentity {
  std::array<std::byte, 16> volume_uuid{};
  std::string node;
};

class Index {
 public:
  enum class Found : uint8_t {
    kFresh,    // nothing was there: empty, position {0,0,0}; load a checkpoint and replay
    kOpened,   // position() tells how far it reaches
  };
  // Opens or creates the environment in `directory` (absolute path, on a local file system; kUnsupported otherwise). An environment that
  // cannot be opened, belongs to another volume or node, has another format or fails its checks is moved aside to
  // "<directory>.damaged" (replacing an older one there) and a fresh one is made; `why` then tells the reason.
  static Result<std::unique_ptr<Index>> open(const std::string& directory, const IndexIdentity& identity, Found* found,
                                             std::string* why);
  virtual ~Index() = default;

  // Whether close_clean() had closed the index that was opened. False for a new index.
  virtual bool was_closed_cleanly() const = 0;
  virtual bool replaced_another() const = 0;      // open() moved an index of another volume, node or format aside
  virtual JournalPosition position() const = 0;   // position committed to LMDB
  virtual Stamp stamp() const = 0;                // newest applied
  virtual IndexTotals totals() const = 0;         // overlay included; O(1)
  // Highest object number, and highest extent seq, of `epoch` that was ever applied. 0 if none.
  virtual uint64_t highest_number(uint32_t epoch) const = 0;
  virtual uint64_t highest_extent(uint32_t epoch) const = 0;

  // Reads see everything applied. A read that needs a damaged row or page returns kCorrupt; all others answer as before (the
  // owner then rebuilds; see damaged()).
  virtual Result<std::optional<NameEntry>> find_name(ObjectId parent, std::string_view name) const = 0;
  virtual Result<std::optional<ObjectRecord>> find_object(ObjectId id) const = 0;
  // Only attributes, size and place (no checksums, no inline bytes): enough for stat.
  virtual Result<std::optional<ObjectRecord>> find_object_summary(ObjectId id) const = 0;
  // Names of a directory with cookie > `after`, ascending, about `limit` of them. Names with the same cookie are never
  // split between two calls.
  virtual Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const = 0;
  virtual Result<bool> is_empty(ObjectId directory) const = 0;
  virtual Result<std::optional<SuccessorsRecord>> find_successors(ObjectId id) const = 0;
  virtual Result<std::optional<ExtentUsage>> find_extent(ExtentId id) const = 0;
  // How much of the file keep_in_memory() may lock: 128 MiB until this is called.
  virtual void limit_kept(uint64_t most_bytes) = 0;
  // Reads the first part of the file into memory and locks it there. Blocks; best effort.
  virtual void keep_in_memory() const = 0;
  // Unmaps file pages beyond that part, so that they count as page cache and not as memory of this process. Call each second; commits and scans do it, too.
  virtual void let_go_of_mapped() const = 0;
  // Reads of large rows map much in less than a second. They then call `wanted`, under any lock; it does not block, and has another thread let go.
  // Without it, or where nobody lets go in time, they do so themselves. Set before there are readers.
  virtual void set_let_go_wanted(std::function<void()> wanted) = 0;
  // Unused bytes in the committed file. Later commits use them again, but the file does not shrink by itself. Cheap.
  virtual uint64_t unused_bytes() const = 0;
  // Rewrites the file without its unused_bytes() and replaces the old one; reads go on meanwhile, commits wait. False: the file stays as it is
  // (damaged, very large, or no room for both). Call on the thread that commits.
  virtual bool give_back_unused() = 0;
  // True from the moment a read or commit finds LMDB damaged until finish_rebuild(): commits are refused, position() stays.
  virtual bool damaged() const = 0;
  // Call when a batch of the journal could not be applied. Commits are refused until the next open, which replays the journals from
  // position() on. damaged() stays true.
  virtual void give_up_commits() = 0;
  // Returns an empty index beside a damaged one; the caller fills it from checkpoint and journals up to position(), no further. Replaces an
  // earlier rebuild that was not finished. This and finish_rebuild() block on the directory's file system; reads go on meanwhile.
  virtual Result<std::unique_ptr<Index>> begin_rebuild() = 0;
  // Puts the file of `filled` in place of the damaged one; rows applied since position() stay above it in the overlay. On error the damaged
  // file stays, and another rebuild can be begun.
  virtual Status finish_rebuild(std::unique_ptr<Index> filled) = 0;

  // Applies one journaled batch to the overlay: names, nlink counts (of files and of parent directories), extent usage; removes objects that
  // lost their last name, with their successors row. `after` is the journal position behind the batch. Returns the places that became free.
  // Ignores a name whose child is unknown, an unname of another child, and attributes of an unknown object (they
  // occur when a body was found absent at recovery). A put of a file object stays invisible until a name arrives;
  // scan_nameless() lists objects without any name. When a directory is removed, the batch or an earlier one must have
  // removed its entries before.
  virtual Result<std::vector<FreedPlace>> apply(const Batch& batch, JournalPosition after) = 0;
  // Fixes what the next commit() writes: all batches applied so far. Later batches wait for the commit after it. Cheap.
  virtual void freeze() = 0;
  virtual JournalPosition next_position() const { return position(); }  // what commit() would reach now
  // Writes the overlay to LMDB, synced: all batches applied before the last freeze() (before this call if there was no freeze() since the last commit).
  // On error (disk full) nothing is lost: the overlay keeps the rows, and a later commit tries again.
  virtual Status commit() = 0;
  virtual uint64_t overlay_rows() const = 0;
  // About how much the next commit adds to the file, rather too much. Looks at each row of the overlay.
  virtual uint64_t growth_bytes() const = 0;
  // The leftovers committed with position(); nullopt if there are none for that position. set_leftovers() before a commit() sets what
  // it writes: as_of() the position committed. Both on the thread that commits.
  virtual std::optional<Leftovers> leftovers() const = 0;
  virtual void set_leftovers(Leftovers leftovers) = 0;
  // From any thread. The mark is written by the next commit that has rows to write, or by the close.
  virtual ScrubMark scrub_mark() const = 0;
  virtual void set_scrub_mark(const ScrubMark& mark) = 0;

  // Bulk load of a checkpoint into a fresh index, much faster than apply(). Records must come in checkpoint order: objects by id, names by (parent,
  // cookie, name), successors by id, then those that scan_peer_records() gives. finish_load() commits everything with the position.
  virtual Status begin_load() = 0;
  virtual Status load(Record&& record) = 0;
  virtual Status finish_load(JournalPosition position, Stamp stamp) = 0;

  // Full scans of the committed state, in key order, for checkpoints and fsck. The caller makes sure that no commit runs
  // meanwhile (a read transaction held across commits makes the file grow). The scan stops when the callback returns false.
  virtual Status scan_objects(const std::function<bool(ObjectRecord&&)>& row) const = 0;
  virtual Status scan_names(const std::function<bool(NameRecord&&)>& row) const = 0;
  virtual Status scan_successors(const std::function<bool(SuccessorsRecord&&)>& row) const = 0;
  virtual Status scan_extents(const std::function<bool(ExtentId, const ExtentUsage&)>& row) const = 0;
  // Records exchanged with other nodes: how far each node's statements are answered (SeenRecord, by node), then this node's own
  // statements that are not known to be answered (StatementRecord, in the order in which they were made).
  virtual Status scan_peer_records(const std::function<bool(Record&&)>& row) const = 0;
  // Ids of committed objects after `after`, ascending; may run beside commits. Batches that are not committed yet are not reflected.
  virtual Result<std::vector<ObjectId>> objects_after(ObjectId after, size_t limit) const = 0;
  // Drops the statements about `node`'s objects up to that position of this index's journals: the node has answered them. As with apply(), the
  // next commit writes it. (A replay of the journals brings them back, which does no harm.)
  virtual Status forget_statements(std::string_view node, JournalPosition answered) = 0;
  // Objects without a name (nlink 0), left by a crash between put and name.
  virtual Result<std::vector<ObjectId>> scan_nameless() const = 0;

  // Marks a clean close (with a checksum of the file if it is small enough to be checked at the next open) and closes.
  virtual Status close_clean() = 0;
};

// kExists if `directory` holds anything but an index of this program: files of others, another program's LMDB, links. Changes
// nothing; an absent or empty directory is fine.
Status check_index_directory(const std::string& directory);
// Whether an index can be made in `directory`; the error tells why not. Leaves nothing behind. For a path that a user chose, before anything else is made.
Status check_index_place(const std::string& directory);
// Removes an index that nobody has open; the next open makes a new one, to be filled from checkpoint and journals. kExists, and nothing is
// removed, if the directory holds anything else.
Status remove_index(const std::string& directory);

}  // namespace kvcachefs
