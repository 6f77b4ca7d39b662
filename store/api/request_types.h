// The values that calls of the store take and return.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/base/types.h"

namespace kvcachefs {

template <class T>
using Completion = std::move_only_function<void(Result<T>)>;
using StatusCompletion = std::move_only_function<void(Status)>;

struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t thread_id = 0;  // of the calling thread: tells streams and writers of one name apart
};

struct Stat {
  ObjectId id;
  uint32_t mode = 0, nlink = 0, uid = 0, gid = 0, rdev = 0;
  uint64_t size_bytes = 0;
  uint64_t blocks_512 = 0;
  int64_t atime_ns = 0, mtime_ns = 0, ctime_ns = 0, btime_ns = 0;
  bool brief = false;  // from lookup(): must not be cached: the name has several writers, or the store needs to see each probe of it
  bool to_be_written = false;  // from lookup(): a repetition, after an open for writing was answered kStale
};

struct SetAttributes {
  std::optional<uint32_t> mode;  // permission bits
  std::optional<uint32_t> uid, gid;
  std::optional<uint64_t> size_bytes;
  std::optional<int64_t> atime_ns, mtime_ns, ctime_ns;  // exact
  bool atime_now = false, mtime_now = false;
  bool kill_privileges = false;  // drop setuid/setgid bits (HANDLE_KILLPRIV_V2)
  std::function<bool(uint32_t gid)> in_group;  // with kill_privileges: is the caller in that group? empty: it is in none
};

struct DirectoryItem {
  std::string name;
  ObjectId id;
  uint32_t type_bits = 0;  // S_IFMT part
  uint64_t cookie = 0;     // pass the last cookie seen to continue after it
};

// A name that was evicted.
struct GoneName {
  ObjectId parent;
  std::string name;
  ObjectId id;
  bool known = false;  // the kernel may still have the name cached: it was looked up or made recently
};

// The answer to read(): memory that stays valid while `keep` lives. Its extent does not change; its content may, if the file is
// written meanwhile. At the end of the file there are fewer bytes than asked for.
struct ReadReply {
  std::vector<iovec> pieces;
  size_t bytes = 0;
  std::vector<std::shared_ptr<const void>> keep;
};

struct OpenRequest {
  bool read = true;
  bool write = false;
  bool truncate = false;
  bool direct = false;  // O_DIRECT
  bool append = false;  // O_APPEND
  bool keeps_read_time = false;  // O_NOATIME
  bool again = false;  // fs/ can still open another state of the file: if this one is gone, kNotFound, and the caller need not look its name up
};

// The state of another node's file that a handle has open. Valid once that node has changed the bytes: then the id by which the store knows this
// state as long as the file is open. (The id of the file means what the node has now.) Null: a file of this node.
using PeerState = std::shared_ptr<const std::atomic<ObjectId>>;

// For FUSE passthrough: a file that holds exactly this object's bytes, open for reading; -1 if there is none.
struct BackingFile {
  int descriptor = -1;
  std::shared_ptr<void> keep;  // keeps the descriptor open; must be dropped before the store ends
  bool in_memory = false;      // a body in RAM: no byte of it is read from the volume
};

struct FileSystemSpace {
  uint64_t block_bytes = 4096, blocks = 0, blocks_free = 0, files = 0, files_free = 0;
};

enum class RenameMode : uint8_t { kReplace, kNoReplace, kExchange };

enum class XattrMode : uint8_t { kAny, kCreate, kReplace };

// The sender of bytes to be written: a call, which learns of an error, or the kernel, from pages whose writers were told that it took them.
enum class WriteOf : uint8_t { kCall, kPages };

enum class AllocateMode : uint8_t { kExtend, kKeepSize, kPunchHole, kZeroRange, kZeroRangeKeepSize };

enum class SeekFor : uint8_t { kData, kHole };

}  // namespace kvcachefs
