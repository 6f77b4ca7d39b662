// The seam between the store and the backing file system: everything the store does to the volume goes through
// this interface, so that tests can inject faults, cut power and simulate whole volumes below it.
//
// Paths are relative to the volume's root ("nodes/a/1/journal/0.log"), never absolute, never with "..".
// Every call may block on the backing file system unless its comment says otherwise; hold no lock of the store during a
// call. All classes are thread-safe. Reads and writes are never short: EINTR and short transfers are continued inside;
// a transfer that cannot be completed is an error that names the path, the offset and the length.
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
  bool is_removed = false;  // an open file whose name was removed
  uint64_t file_id = 0;  // unique among the files that the volume has at a time
  uint64_t file_system = 0;  // the file system that holds it: others may mount one below the root. 0: the volume does not tell
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
};

struct SpaceInfo {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // for an ordinary user
  uint64_t available_files = UINT64_MAX;  // number of files that can still be made; UINT64_MAX: no limit is counted
};

// What the backing file system can do, probed once when the volume is opened.
struct VolumeFeatures {
  bool direct_io = false;      // O_DIRECT opens succeed
  bool punch_hole = false;     // FALLOC_FL_PUNCH_HOLE gives space back
  bool io_uring = false;       // the engine in use; else POSIX calls on threads
  bool whole_writes = false;   // the blocks of one write are freed together, once all of it is dead (btrfs)
  bool file_ids = false;       // FileInfo has the same `file_id` and `file_system` for an open file and for its path
  bool blocks_lag = false;     // allocated_bytes of a file includes written data only after a sync
  bool network = false;        // NFS, SMB, Ceph, Lustre, FUSE...: a round trip per open, no LMDB here
  bool locks_are_local = false;  // locks do not exclude other machines (NFS with nolock or local_lock)
  std::string filesystem;      // "ext4", "nfs4", ...
};

// How to open. Extents are opened `direct` if the volume supports it: then every offset, length and buffer address passed
// to read and write must be a multiple of kBlockBytes (a read at the end of the file may return less than asked).
struct OpenOptions {
  bool writable = false;
  bool create_exclusive = false;  // kExists if the file is there. Implies writable.
  bool direct = false;
};

// One open file. Closed when the last reference is dropped.
class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  // Fills `into` from `offset`; returns fewer bytes only at the end of the file.
  virtual Result<size_t> read(std::span<std::byte> into, uint64_t offset) = 0;
  // Writes all pieces one after another, starting at `offset`.
  virtual Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) = 0;
  virtual Status sync_data() = 0;  // fdatasync: data and the size needed to read it are on the medium afterwards
  virtual Status truncate(uint64_t size_bytes) = 0;
  // fallocate with mode 0; extends the size: the blocks exist afterwards. kUnsupported if the file system cannot.
  virtual Status allocate(uint64_t offset, uint64_t length) = 0;
  virtual Status punch(uint64_t offset, uint64_t length) = 0;
  virtual Result<FileInfo> info() = 0;
  // A hint that buffered readers (of this descriptor or another) will want these bytes: reads them into the page cache, and blocks
  // meanwhile. Does nothing if there is no page cache.
  virtual void will_need(uint64_t offset, uint64_t length) = 0;
  // Next offset >= `offset` with data, or in a hole (SEEK_DATA, SEEK_HOLE); kNoData past the last.
  virtual Result<uint64_t> next_data(uint64_t offset) = 0;
  virtual Result<uint64_t> next_hole(uint64_t offset) = 0;
  // Bytes in [offset, offset + length) that have blocks, including preallocated (unwritten) ones: writing there takes no more
  // space. If the file system does not report unwritten blocks, they count as holes.
  virtual Result<uint64_t> allocated_in(uint64_t offset, uint64_t length);
  virtual bool is_direct() const = 0;
  virtual int descriptor() const = 0;  // for FUSE passthrough; -1 where there is none (simulated volumes)
};
using FilePtr = std::shared_ptr<File>;

// One read or write for the engine. `pieces` are consecutive in the file from `offset`; the caller owns the
// memory, which must live until `done` has run. `done` gets the number of bytes read (less only at end of file) or
// written (always all).
struct IoRequest {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  FilePtr file;
  uint64_t offset = 0;
  std::vector<std::span<std::byte>> pieces;
  std::move_only_function<void(Result<size_t>)> done;
  bool urgent = true;  // demand I/O; false: prefetch and background, started only while few urgent requests are in flight
};

// A lock on a file of the volume (open file description lock, exclusive); released when destroyed.
class VolumeLock {
 public:
  virtual ~VolumeLock() = default;
  // Replaces the lock file's content with the holder's description, which others can read while the lock is held.
  virtual Status describe(std::string_view holder) = 0;
};

class Volume {
 public:
  virtual ~Volume() = default;
  virtual const VolumeFeatures& features() const = 0;
  virtual const std::string& root() const = 0;  // for messages

  virtual Result<FilePtr> open(const std::string& path, OpenOptions options) = 0;
  virtual Status make_directory(const std::string& path) = 0;  // kExists if it is there
  virtual Status make_directories(const std::string& path) = 0;  // with parents; no error if it exists
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status remove_directory(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  // Like rename() of a file, but kExists if `to` exists: if several callers try at once, on any hosts, one succeeds. A crash may leave
  // the file with both names.
  virtual Status publish(const std::string& from, const std::string& to) = 0;
  virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;  // without . and .., sorted by name
  virtual Result<FileInfo> info(const std::string& path) = 0;
  virtual Status sync_directory(const std::string& path) = 0;  // names made or removed in it become durable
  // Makes durable everything written to the file system so far, by any process (syncfs), including what a dead process left in the
  // page cache. Blocks for as long as that takes.
  virtual Status sync_everything() = 0;
  virtual Result<SpaceInfo> space() = 0;
  // kBusy if another process holds it; the message then quotes the lock file's content.
  virtual Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) = 0;

  // Starts all requests and returns; never blocks on the backing file system (requests may be queued). `done` runs on a thread of
  // the engine (on a simulated volume: inside this call), in any order; it must not block and may submit more.
  virtual void submit(std::vector<IoRequest> requests) = 0;
  // Waits until `done` has run for every request submitted so far.
  virtual void drain() = 0;
  // Announces that files of the volume are read for about so long by other ways than submit() (by the kernel, for clients): background
  // writes are held back as they are during reads that go through submit(). From any thread; never blocks.
  virtual void expect_reads_for(std::chrono::nanoseconds) {}
};

// Runs all requests and waits; returns the first error (the others still ran to their end). `done` of the requests must be empty.
Status run_all(Volume& volume, std::vector<IoRequest> requests);

// For small files: reads the whole content, at most `max_bytes` (more is kTooBig).
Result<std::vector<std::byte>> read_file(Volume& volume, const std::string& path, uint64_t max_bytes);
// Checks that a directory tree (if it exists) holds plain files and directories only, at any depth. For directories that other code opens by path.
Status check_plain(Volume& volume, const std::string& directory);
// Makes a file that is complete and synced when it gets its name; kExists if `path` exists. `draft` is a name that nobody else
// uses; kNotFound if another process removed it meanwhile. A crash may leave the draft, also as a second name.
Status publish_file(Volume& volume, const std::string& draft, const std::string& path, std::span<const std::byte> content);

struct PosixVolumeOptions {
  bool io_uring = true;        // if the kernel allows it; else threads
  unsigned queue_depth = 64;
  unsigned threads = 4;        // of the POSIX engine
  bool openat2 = true;         // if the kernel allows it; else directory by directory
};
// Opens an existing directory and probes its features (by a temporary file ".kvcachefs-probe-<host>-<random>" if writable).
Result<std::shared_ptr<Volume>> open_posix_volume(const std::string& root, const PosixVolumeOptions& options);

// For errors of open() or info() of a volume: the name belongs to a link, FIFO, socket, device or directory, so there is no file content.
bool is_no_file(const Error& error);
// For errors of the same calls: no file of the store is there: nothing, something that is not a file, or a path through something that is not a directory.
bool is_not_there(const Error& error);

// Removes a file; no error if it does not exist.
inline Status remove_file_if_there(Volume& volume, const std::string& path) {
  Status removed = volume.remove_file(path);
  return !removed && removed.error().code == Code::kNotFound ? Status() : removed;
}

}  // namespace kvcachefs
