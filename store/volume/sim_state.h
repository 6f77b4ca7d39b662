// The state of a simulated disk with a write-back cache: what programs see now, what is on the medium, and the changes
// in between, in order. A plain value (a copy is an independent disk); not thread-safe. Errors are errno values;
// the caller adds the path.
//
// What is durable when:
//  - data, sizes, allocation and holes of a file: after sync(file). That does NOT make its name durable (POSIX promises
//    no more, though ext4 does more);
//  - names: after sync_directory of their directory. Earlier changes that the directory's own changes depend on (the
//    other side of a rename) become durable with them, as in one transaction of a journal;
//  - everything: after sync_everything;
//  - a rename is atomic: after a power loss it has happened or it has not, never half.
// Until then a power loss keeps any subset: pieces of a write, truncations, names, later changes without earlier ones.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/volume/fault_volume.h"
#include "store/volume/sim_content.h"

namespace kvcachefs {

template <class T>
using SimResult = std::expected<T, int>;  // errno

// A change of a file that is not on the medium yet.
struct SimChange {
  enum class Kind : uint8_t { kWrite, kTruncate, kAllocate, kPunch };
  Kind kind = Kind::kWrite;
  uint64_t offset = 0;  // kTruncate: the size
  uint64_t length = 0;
  std::shared_ptr<const Bytes> data;  // kWrite
};

// A file or a directory.
struct SimInode {
  bool is_directory = false;
  unsigned names = 0;    // in the directories as programs see them: 0 or 1
  unsigned handles = 0;  // open files
  int64_t mtime_ns = 0;
  SimContent content;
  SimContent durable_content;
  std::vector<SimChange> pending;
  std::map<std::string, uint64_t, std::less<>> entries;  // name -> inode
  std::map<std::string, uint64_t, std::less<>> durable_entries;
};

// A change of names that is not on the medium yet: `inode` disappears from `from`, appears at `to`, or both.
struct SimNameChange {
  struct Place {
    uint64_t directory = 0;  // 0: none
    std::string name;
  };
  Place from;
  Place to;
  uint64_t inode = 0;
};

class SimState {
 public:
  explicit SimState(uint64_t capacity_bytes);

  // Names. Paths have passed check_path; find, list and sync_directory take "" for the root.
  SimResult<uint64_t> find(std::string_view path) const;
  SimResult<uint64_t> create(std::string_view path, bool is_directory);
  SimResult<void> remove(std::string_view path, bool is_directory);
  SimResult<void> rename(std::string_view from, std::string_view to);
  SimResult<void> sync_directory(std::string_view path);
  std::vector<std::string> all_files() const;  // paths, sorted

  bool has(uint64_t id) const { return inodes_.contains(id); }
  const SimInode& inode(uint64_t id) const { return inodes_.at(id); }
  void open_handle(uint64_t id) { ++inodes_.at(id).handles; }
  void close_handle(uint64_t id);

  // Files.
  SimResult<void> write(uint64_t id, uint64_t offset, Bytes data);
  void truncate(uint64_t id, uint64_t size);
  SimResult<void> allocate(uint64_t id, uint64_t offset, uint64_t length);
  void punch(uint64_t id, uint64_t offset, uint64_t length);
  void sync(uint64_t id);
  void sync_everything();  // every file and every name
  void lose_unsynced(uint64_t id);  // drops unsynced writes

  // Corruption of the medium and of the cache.
  void flip(uint64_t id, uint64_t offset, std::byte xor_with);
  void cut(uint64_t id, uint64_t size);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }

  // The disk as the next start finds it, after the process died or the power was cut.
  SimState after_crash() const;
  SimState after_power_loss(const SimVolume::PowerLoss& loss) const;

 private:
  struct Parent {
    uint64_t directory;
    std::string_view name;
  };
  SimResult<Parent> find_parent(std::string_view path) const;
  SimResult<uint64_t> find_in(const Parent& parent) const;
  void change_names(SimNameChange change);
  void make_durable(const SimNameChange& change);
  void change_content(uint64_t id, SimChange change);
  bool fits(const SimInode& inode, uint64_t offset, uint64_t length) const;
  void release_content(SimInode& inode);
  void collect_garbage();
  void mark(uint64_t id, std::set<uint64_t>& reached) const;
  void collect_files(uint64_t directory, const std::string& prefix, std::vector<std::string>& paths) const;
  void settle();

  std::map<uint64_t, SimInode> inodes_;
  std::vector<SimNameChange> pending_names_;
  uint64_t capacity_bytes_;
  uint64_t used_bytes_ = 0;  // of the content as programs see it
  uint64_t next_inode_;
  int64_t clock_ns_ = 0;  // counts changes: a simulated disk has no time of its own
  size_t garbage_limit_ = 1024;
};

}  // namespace kvcachefs
