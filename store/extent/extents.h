// Extent files: their names, the cache of open ones for reading, and making new ones.
//   nodes/<node>/<epoch>/extents/<seq/4096>/<seq>.{pack,solo,raw}
// Extents of a peer are only read: calls that would change them fail with kReadOnly.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/extent/file_cache.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

std::string extent_path(std::string_view node, ExtentId id, PlaceKind kind);

// Thread-safe. Calls that open or make files block on the volume.
class Extents {
 public:
  enum class Whose : uint8_t { kOwn, kPeers };
  Extents(std::shared_ptr<Volume> volume, FileIdentity identity, size_t max_open_files, Whose whose = Whose::kOwn);

  // Returns the extents of the peer with that ordinal; null: the peer is not known any more. Set before an extent of a peer is used.
  using OfPeer = std::function<std::shared_ptr<Extents>(uint32_t ordinal)>;
  void set_peers(OfPeer of_peer) { of_peer_ = std::move(of_peer); }
  // Once `most` files that were made here are open, anywhere in this process, make_if_few_open() makes none. From half as many on, making one
  // calls `ask_for_syncs`, which must not block: sync_ahead() then closes those that have no writer any more. Call before other threads begin.
  void limit_made(size_t most, std::function<void()> ask_for_syncs) {
    most_made_open_ = most;
    ask_for_syncs_ = std::move(ask_for_syncs);
  }

  // New extents get numbers from `first_seq` on.
  void start_at(uint64_t first_seq) { next_seq_ = first_seq; }

  struct Made {
    ExtentId id;
    FilePtr file;
  };
  // Makes a new extent of this epoch. Pack extents carry a header block (bodies start at kBlockBytes); solo and raw ones
  // have none. Solo and pack files are opened for direct I/O where the volume has it.
  // If no file can be made any more, returns one of the spares; without a spare, an error for which lacks_files() is true.
  Result<Made> make(PlaceKind kind);
  // The same for data that can also go elsewhere: also fails, with lacks_files() true, if so many files are open that readers or the
  // journal might find no descriptor.
  Result<Made> make_if_few_open(PlaceKind kind);
  // Makes empty, open spares, up to `count` packs and as many solo files: accepted data goes there once others have
  // taken the last inode, or this process its last descriptor.
  Status keep_spares(size_t count);
  // Removes one spare, so that another file can be made; false: there is none.
  bool give_up_spare();
  // Frees one descriptor or more: closes the files kept for readers, or syncs and closes one file, or removes a spare. False: there is none of these.
  bool give_up_descriptor();
  // Removes the unused spares. Call at shutdown.
  void remove_spares();
  // The calls that read, and path() and info(), take extents of peers as well.
  // Opens for reading (own raw extents: also for writing); takes the file from the cache if it is there. May block on an open.
  Result<FilePtr> open(ExtentId id, PlaceKind kind);
  // Looks in the cache only; null: not there.
  FilePtr cached(ExtentId id);
  // A new descriptor, never from the cache: for the second read after a checksum mismatch.
  Result<FilePtr> open_fresh(ExtentId id, PlaceKind kind);
  // A descriptor for passthrough: buffered, read-only, never from the cache.
  Result<FilePtr> open_buffered(ExtentId id, PlaceKind kind);
  // A pack extent, opened writable to punch holes. Never from the cache.
  Result<FilePtr> open_for_punch(ExtentId id);
  // Size and blocks of the file, looked up by its path: kNotFound if it does not exist. Blocks on the volume.
  Result<FileInfo> info(ExtentId id, PlaceKind kind);
  // The file is not there, and its directory is: the file was removed, and it is not the volume, or a part of it, that is away. Blocks on the volume.
  bool was_removed(ExtentId id, PlaceKind kind);
  // The path of the file below the volume's root, for messages and listings.
  std::string path(ExtentId id, PlaceKind kind) const;
  // Removes the file. Notes its directory for sync_all(): until it has run, a power loss may bring the file back.
  Status remove(ExtentId id, PlaceKind kind);
  void forget(ExtentId id);
  // Drops the cached descriptor: the next open() makes a new one.
  void close_cached(ExtentId id);
  // Extents with a cached descriptor, which the next open() returns.
  std::vector<ExtentId> cached_ids();

  // Notes that a file of this epoch has data (and perhaps a name) that is not synced. `bytes`: written to it since it was last noted.
  void note_unsynced(ExtentId id, PlaceKind kind, FilePtr file, uint64_t bytes = 0);
  // How many of the noted bytes syncs that succeeded have put on the medium, since the start. Does not block.
  uint64_t synced_bytes() const { return synced_bytes_.load(std::memory_order_relaxed); }
  // Syncs all noted files and the directories of new ones; returns the first error. Blocks. A file whose sync failed
  // is lost: it is never synced or noted again. The error of a raw file is not returned here, for it must not hold back the records of others:
  // a caller that needs that file asks told_of_raw().
  Status sync_all();
  // Syncs the files noted now, one after another and without the directories, so that a later sync_all() finds little to do. A caller
  // that needs one of them meanwhile syncs it itself, or waits for that one only.
  Status sync_ahead();
  // Whether limit_made() has asked for syncs since the last call.
  bool take_asked_for_syncs() { return asked_for_syncs_.exchange(false); }
  // Syncs the given files only (and the noted directories), if they are noted. Returns the error of a lost file every time. For
  // raw files see above.
  Status sync(const std::vector<ExtentId>& ids);
  // Whether a sync of this pack or solo extent failed. Stays true until it is removed: what was written to it since its last sync
  // may never reach the medium, though it reads well and the next sync would succeed.
  bool is_lost(ExtentId id);
  // Whether the body in this place lies in a lost extent.
  bool is_lost(const Place& place) {
    return (place.kind == PlaceKind::kPacked || place.kind == PlaceKind::kSolo) && is_lost(place.extent);
  }
  std::vector<std::pair<ExtentId, Error>> lost();
  // The error of a raw file among `ids` of which a sync ever failed: returned every time, until the file is removed. Its bytes went
  // through the page cache; the kernel reports the error once and forgets the pages, and the next sync would succeed.
  Status told_of_raw(const std::vector<ExtentId>& ids);

  const FileIdentity& identity() const { return identity_; }
  Volume& volume() { return *volume_; }

 private:
  // The extents of the peer that owns `id`; null: the peer is unknown.
  std::shared_ptr<Extents> peer_of(ExtentId id) const { return of_peer_ ? of_peer_(id.node_ordinal()) : nullptr; }
  Result<Made> make_file(PlaceKind kind);
  Result<FilePtr> open_new(const std::string& path, PlaceKind kind);
  Status look_where_it_is(File& file, const std::string& path);
  Status refuse_of_peer(std::string_view what) const;
  std::optional<Made> take_spare(PlaceKind kind);
  // Repeats `attempt`, which returns a Status or a Result, while it fails for want of a descriptor and one can be given up.
  template <class Attempt>
  auto with_descriptor(Attempt attempt) {
    auto result = attempt();
    while (!result && lacks_descriptors(result.error()) && give_up_descriptor()) result = attempt();
    return result;
  }
  bool close_idle();
  bool sync_one();
  Status make_parents(const std::string& directory);
  void let_go(ExtentId id);  // drops the descriptors held for `id`
  struct Unsynced {
    FilePtr file;
    PlaceKind kind;
    uint64_t bytes = 0;
  };
  FilePtr written(ExtentId id);
  FilePtr counted(FilePtr file);
  Unsynced take_unsynced(std::unordered_map<ExtentId, Unsynced>::iterator at);
  Status sync_files(std::vector<std::pair<ExtentId, Unsynced>> files, std::vector<std::string> directories);
  Status sync_taken(ExtentId id, Unsynced unsynced);
  Status look_for_file(ExtentId id, const Unsynced& unsynced);
  bool removed_here(ExtentId id);
  Status wait_for_syncs(const std::vector<ExtentId>& ids);

  const std::shared_ptr<Volume> volume_;
  const FileIdentity identity_;
  OfPeer of_peer_;
  const Whose whose_;
  std::atomic<uint64_t> next_seq_{0}, synced_bytes_{0};
  std::atomic<uint64_t> file_system_{0};  // that holds the first file made; 0: none was made, or the volume does not tell
  size_t most_made_open_ = SIZE_MAX;
  std::function<void()> ask_for_syncs_;
  std::atomic<bool> asked_for_syncs_{false};
  const std::shared_ptr<std::atomic<size_t>> made_open_ = std::make_shared<std::atomic<size_t>>(0);  // files outlive this object

  LeafMutex mutex_;  // a leaf; guards all below; never held across a call to the volume
  FileCache open_;
  std::unordered_map<ExtentId, Unsynced> unsynced_;
  std::vector<Made> spare_packs_, spare_solos_;
  std::unordered_multimap<ExtentId, FilePtr> in_hand_;   // taken out of unsynced_ by calls that are syncing them
  ConditionVariable settled_;                            // signalled when a file leaves in_hand_
  std::unordered_map<ExtentId, Error> lost_, lost_raw_;  // the error of a failed sync
  Status untold_;  // error of a sync made to free a descriptor, not returned to anybody yet
  std::unordered_set<ExtentId> removed_;  // by this store, while any file is in hand
  uint64_t removals_ = 0;  // a file opened while this changed is not cached: it may be the removed one
  std::unordered_set<std::string> directories_;           // that exist
  std::unordered_set<std::string> unsynced_directories_;  // in which a name was made
  std::unordered_set<std::string> removed_from_;          // ... or removed: no caller waits for that
};

}  // namespace kvcachefs
