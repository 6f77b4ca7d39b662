// The one seam between the store and the backing file system: everything the store does to the volume goes through
// here, so that faults are injected, power is cut and whole volumes are simulated below it.
//
// Paths are relative to the volume's root ("nodes/a/1/journal/0.log"), never absolute, never with "..".
// Every call may block on the backing file system unless it says otherwise; none may be made with a lock of the store
// held. All classes are thread-safe. Reads and writes are never short: EINTR and short transfers are continued inside,
// what cannot be completed is an error that names the path, the offset and the length.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

struct FileInfo {
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;  // st_blocks * 512
  int64_t mtime_ns = 0;
  bool is_directory = false;
  bool is_removed = false;  // a file that is open, and has no name any more
  uint64_t file_id = 0;  // no other file of the volume has it at the time
  uint64_t file_system = 0;  // where it lies: others may mount another one below the root. 0: the volume does not tell
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
};

struct SpaceInfo {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // to an ordinary user
  uint64_t available_files = UINT64_MAX;  // that can still be made; the largest number: nobody counts them
};

// What the backing file system can do, probed once when the volume is opened.
struct VolumeFeatures {
  bool direct_io = false;      // O_DIRECT opens succeed
  bool punch_hole = false;     // FALLOC_FL_PUNCH_HOLE gives space back
  bool io_uring = false;       // the engine that is in use; else POSIX calls on threads
  bool whole_writes = false;   // the blocks of one write come back together, when all of it is dead (btrfs)
  bool file_ids = false;       // FileInfo tells the same `file_id` and `file_system` of an open file and of its path
  bool blocks_lag = false;     // allocated_bytes of a file tells of what was written only after a sync
  bool network = false;        // NFS, SMB, Ceph, Lustre, FUSE...: a round trip per open, no LMDB here
  bool locks_are_local = false;  // they do not exclude other machines (NFS with nolock or local_lock)
  std::string filesystem;      // "ext4", "nfs4", ...
};

// How to open. Extents are opened `direct` where the volume has it: then every offset, length and buffer address given
// to read and write must be a multiple of kBlockBytes (a read at the end of the file may return less than asked).
struct OpenOptions {
  bool writable = false;
  bool create_exclusive = false;  // make it; kExists if it is there. Implies writable.
  bool direct = false;
};

// One open file. Closed when the last reference goes.
class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  // Fills `into` from `offset`; returns fewer bytes only at the end of the file.
  virtual Result<size_t> read(std::span<std::byte> into, uint64_t offset) = 0;
  // Writes all pieces one after another from `offset` on.
  virtual Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) = 0;
  virtual Status sync_data() = 0;  // fdatasync: data and the size needed to read it are on the medium afterwards
  virtual Status truncate(uint64_t size_bytes) = 0;
  // mode 0 of fallocate, size extended: the blocks are there afterwards. kUnsupported where the file system cannot.
  virtual Status allocate(uint64_t offset, uint64_t length) = 0;
  virtual Status punch(uint64_t offset, uint64_t length) = 0;
  virtual Result<FileInfo> info() = 0;
  // A hint: buffered readers (of this descriptor or another) will want these bytes. Reads them into the page cache, and blocks
  // meanwhile; nothing where there is none.
  virtual void will_need(uint64_t offset, uint64_t length) = 0;
  // Next offset >= `offset` with data / without (SEEK_DATA, SEEK_HOLE); kNoData past the last.
  virtual Result<uint64_t> next_data(uint64_t offset) = 0;
  virtual Result<uint64_t> next_hole(uint64_t offset) = 0;
  // Bytes in [offset, offset + length) that have blocks, allocated ahead (unwritten) ones too: writing there takes no more
  // room. Where the file system does not tell of unwritten blocks, they count as holes.
  virtual Result<uint64_t> allocated_in(uint64_t offset, uint64_t length);
  virtual bool is_direct() const = 0;
  virtual int descriptor() const = 0;  // for FUSE passthrough; -1 where there is none (simulated volumes)
};
using FilePtr = std::shared_ptr<File>;

// One read or write given to the engine. `pieces` are consecutive in the file from `offset`; the memory stays the
// caller's and must live until `done` ran. For reads `done` gets the number of bytes read (less only at end of file),
// for writes the number written (always all).
struct IoRequest {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  FilePtr file;
  uint64_t offset = 0;
  std::vector<std::span<std::byte>> pieces;
  std::move_only_function<void(Result<size_t>)> done;
  bool urgent = true;  // demand I/O; false: prefetch and background, sent only while little else is in flight
};

// A lock held on a file of the volume (open file description lock, exclusive); given up when destroyed.
class VolumeLock {
 public:
  virtual ~VolumeLock() = default;
  // Replaces the lock file's content (who holds it); readable by others while held.
  virtual Status describe(std::string_view holder) = 0;
};

class Volume {
 public:
  virtual ~Volume() = default;
  virtual const VolumeFeatures& features() const = 0;
  virtual const std::string& root() const = 0;  // for messages

  virtual Result<FilePtr> open(const std::string& path, OpenOptions options) = 0;
  virtual Status make_directory(const std::string& path) = 0;  // kExists if it is there
  virtual Status make_directories(const std::string& path) = 0;  // with parents; fine if there
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status remove_directory(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces
  // As rename(), of a file, but kExists if `to` is there: of several that try at once, on any host, one succeeds. A crash may leave
  // the file with both names.
  virtual Status publish(const std::string& from, const std::string& to) = 0;
  virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;  // without . and .., sorted by name
  virtual Result<FileInfo> info(const std::string& path) = 0;
  virtual Status sync_directory(const std::string& path) = 0;  // names made or removed in it survive power loss
  // Everything written to the file system so far, by whomever, survives power loss (syncfs): also what a process that died
  // has left in the page cache. Blocks for as long as that takes.
  virtual Status sync_everything() = 0;
  virtual Result<SpaceInfo> space() = 0;
  // kBusy if another process holds it; the message then quotes the lock file's content.
  virtual Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) = 0;

  // Starts all of them and returns; never blocks on the backing file system (it may queue). `done` runs on a thread of
  // the engine (on a simulated volume: inside this call), in any order; it must not block and may submit more.
  virtual void submit(std::vector<IoRequest> requests) = 0;
  // Waits until every request submitted so far has run its `done`.
  virtual void drain() = 0;
  // Somebody reads files of the volume by other ways than submit() for about so long (the kernel does, for clients): background
  // writes are held back as they are beside reads that come through here. From any thread; never blocks.
  virtual void expect_reads_for(std::chrono::nanoseconds) {}
};

// Runs all and waits; the first error wins (the others still ran to their end). `done` of the requests must be empty.
Status run_all(Volume& volume, std::vector<IoRequest> requests);

// Convenience for small files: whole content, at most `max_bytes` (more is kTooBig).
Result<std::vector<std::byte>> read_file(Volume& volume, const std::string& path, uint64_t max_bytes);
// Whether a directory (if it is there) holds plain files and directories only, to whatever depth: for what others open by path.
Status check_plain(Volume& volume, const std::string& directory);
// Makes a file that is whole when it has its name, and synced with it; kExists if there is one. `draft` is a name that nobody else
// takes; kNotFound if somebody removed it meanwhile. A crash may leave it, also as a second name.
Status publish_file(Volume& volume, const std::string& draft, const std::string& path, std::span<const std::byte> content);

struct PosixVolumeOptions {
  bool io_uring = true;        // where the kernel allows it; else threads
  unsigned queue_depth = 64;
  unsigned threads = 4;        // of the POSIX engine
  bool openat2 = true;         // where the kernel allows it; else directory by directory
};
// Opens an existing directory and probes its features (by a temporary file ".kvcachefs-probe-<host>-<random>" if writable).
Result<std::shared_ptr<Volume>> open_posix_volume(const std::string& root, const PosixVolumeOptions& options);

// Of open() or info() of a volume: a link, a FIFO, a socket, a device or a directory has the name, so there is no byte of a file.
bool is_no_file(const Error& error);
// The same calls: nothing of the store is there any more. Nothing is, or what is no file, or the way leads over what is no directory.
bool is_not_there(const Error& error);

// One that is not there is as good as removed.
inline Status remove_file_if_there(Volume& volume, const std::string& path) {
  Status removed = volume.remove_file(path);
  return !removed && removed.error().code == Code::kNotFound ? Status() : removed;
}

}  // namespace kvcachefs
