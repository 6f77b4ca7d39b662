// Extent files: their names, the cache of open ones for reading, and making new ones.
//   nodes/<node>/<epoch>/extents/<seq/4096>/<seq>.{pack,solo,raw}
// Those of a peer are read and nothing else: calls that would change something there fail with kReadOnly.
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

  // Where the extents of a peer are read, by its ordinal; null: it is not known any more. Before any of them is asked for.
  using OfPeer = std::function<std::shared_ptr<Extents>(uint32_t ordinal)>;
  void set_peers(OfPeer of_peer) { of_peer_ = std::move(of_peer); }
  // From `most` files on that were made here and are open, by whomever, make_if_few_open() makes none. From half as many on each that is
  // made calls `ask_for_syncs`, which must not block: sync_ahead() closes those that nobody writes any more. Before other threads begin.
  void limit_made(size_t most, std::function<void()> ask_for_syncs) {
    most_made_open_ = most;
    ask_for_syncs_ = std::move(ask_for_syncs);
  }

  // Numbers given out from now on start at `first_seq`.
  void start_at(uint64_t first_seq) { next_seq_ = first_seq; }

  struct Made {
    ExtentId id;
    FilePtr file;
  };
  // A new extent of this epoch. Pack extents carry a header block (bodies start at kBlockBytes); solo and raw ones
  // none. Solo and pack files are opened for direct I/O where the volume has it.
  // Where no file can be made any more it gives one of the spares; else the error is one of which lacks_files() is true.
  Result<Made> make(PlaceKind kind);
  // The same for what can go elsewhere as well: an error of which lacks_files() is true also where so many are open that others, who
  // read or write the journal, might find no descriptor.
  Result<Made> make_if_few_open(PlaceKind kind);
  // Makes spares up to `count` of packs and as many solo files, empty and open: what was accepted goes there when others have
  // taken the last inode, or this process its last descriptor.
  Status keep_spares(size_t count);
  // Removes one, so that another file can be made; false: there is none.
  bool give_up_spare();
  // Closes one file or more that are open here: those kept for readers, or one that is synced for it, or a spare. False: there is none.
  bool give_up_descriptor();
  // Before the end: those that nothing was written to.
  void remove_spares();
  // Those that read, and path() and info(), know the extents of peers as well.
  // Open for reading (own raw ones: also for writing); from the cache where it is there. May block on an open.
  Result<FilePtr> open(ExtentId id, PlaceKind kind);
  // From the cache only.
  FilePtr cached(ExtentId id);
  // A fresh descriptor, past every cache: for the second look after a checksum failed.
  Result<FilePtr> open_fresh(ExtentId id, PlaceKind kind);
  // Descriptor for passthrough: buffered, read-only, not from the cache.
  Result<FilePtr> open_buffered(ExtentId id, PlaceKind kind);
  // A pack extent, writable, for giving ranges back. Not from the cache.
  Result<FilePtr> open_for_punch(ExtentId id);
  // Size and blocks of the file, looked up by its path: kNotFound if it is not there. Blocks on the volume.
  Result<FileInfo> info(ExtentId id, PlaceKind kind);
  // The path of the file below the volume's root, for messages and listings.
  std::string path(ExtentId id, PlaceKind kind) const;
  // The directory is noted for sync_all(): until then, power loss may bring the file back.
  Status remove(ExtentId id, PlaceKind kind);
  void forget(ExtentId id);
  // The next open() makes a new descriptor.
  void close_cached(ExtentId id);
  // Of which there is a descriptor that the next open() gets.
  std::vector<ExtentId> cached_ids();

  // Remembers that a file of this epoch has data (and perhaps a name) that is not synced.
  void note_unsynced(ExtentId id, PlaceKind kind, FilePtr file);
  // Syncs all such files and the directories of new ones; the first error is returned. Blocks. A file that could not be synced
  // is lost: it is not tried again, nor noted again. That of a raw file is no reason to keep everybody else's records back:
  // told_of_raw() is for who asks for that one.
  Status sync_all();
  // Syncs what is noted now, one file after another and without the directories, so that a sync_all() to come finds little: who
  // needs one of them meanwhile takes it, or waits for that one only.
  Status sync_ahead();
  // Whether limit_made() asks for that; once for all that asked.
  bool take_asked_for_syncs() { return asked_for_syncs_.exchange(false); }
  // Syncs the given ones only (and their directories), if they are noted. The error of one that is lost is told every time. Of
  // raw ones see above.
  Status sync(const std::vector<ExtentId>& ids);
  // Packs and solo extents of which a sync failed, until they are removed: what was written to them since they were synced last
  // may never come to the medium, though they read well, and though the next sync would succeed.
  bool is_lost(ExtentId id);
  // The body in this place lies in one of them.
  bool is_lost(const Place& place) {
    return (place.kind == PlaceKind::kPacked || place.kind == PlaceKind::kSolo) && is_lost(place.extent);
  }
  std::vector<std::pair<ExtentId, Error>> lost();
  // The error of a raw file among them of which a sync ever failed: told for good, until the file is removed. Its bytes went
  // through the page cache; the kernel tells the error once, forgets the pages, and the next sync would succeed.
  Status told_of_raw(const std::vector<ExtentId>& ids);

  const FileIdentity& identity() const { return identity_; }
  Volume& volume() { return *volume_; }

 private:
  // What has them; null: none is known.
  std::shared_ptr<Extents> peer_of(ExtentId id) const { return of_peer_ ? of_peer_(id.node_ordinal()) : nullptr; }
  Result<Made> make_file(PlaceKind kind);
  Status look_where_it_is(File& file, const std::string& path);
  Status refuse_of_peer(std::string_view what) const;
  std::optional<Made> take_spare(PlaceKind kind);
  // Repeats `attempt`, which answers a Status or a Result, as long as it fails for want of a descriptor and one can be given up.
  template <class Attempt>
  auto with_descriptor(Attempt attempt) {
    auto result = attempt();
    while (!result && lacks_descriptors(result.error()) && give_up_descriptor()) result = attempt();
    return result;
  }
  bool close_idle();
  bool sync_one();
  Status make_parents(const std::string& directory);
  void let_go(ExtentId id);  // of the descriptors that are held of it
  struct Unsynced {
    FilePtr file;
    PlaceKind kind;
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
  std::atomic<uint64_t> next_seq_{0};
  std::atomic<uint64_t> file_system_{0};  // of the first file that was made; 0: none was, or the volume does not tell
  size_t most_made_open_ = SIZE_MAX;
  std::function<void()> ask_for_syncs_;
  std::atomic<bool> asked_for_syncs_{false};
  const std::shared_ptr<std::atomic<size_t>> made_open_ = std::make_shared<std::atomic<size_t>>(0);  // files outlive this

  LeafMutex mutex_;  // a leaf; guards all below; never held across a call to the volume
  FileCache open_;
  std::unordered_map<ExtentId, Unsynced> unsynced_;
  std::vector<Made> spare_packs_, spare_solos_;
  std::unordered_multimap<ExtentId, FilePtr> in_hand_;   // taken out of unsynced_ by calls that sync them just now
  ConditionVariable settled_;                            // one is in hand no more
  std::unordered_map<ExtentId, Error> lost_, lost_raw_;  // a sync of it failed
  Status untold_;  // the error of a sync for want of a descriptor, whose caller asked for none
  std::unordered_set<ExtentId> removed_;  // by this store, while any are in hand
  uint64_t removals_ = 0;  // what was opened beside one is not kept open: it may be what was removed
  std::unordered_set<std::string> directories_;           // that exist
  std::unordered_set<std::string> unsynced_directories_;  // in which a name was made
  std::unordered_set<std::string> removed_from_;          // ... or removed: nobody waits for that
};

}  // namespace kvcachefs
