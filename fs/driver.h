// What the request handlers share. One file per family of requests; every handler decodes, makes one call of the store, and
// replies. Private to fs/.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "fs/errno_map.h"
#include "fs/locks.h"
#include "fs/options.h"
#include "fs/passthrough.h"
#include "fs/side_thread.h"
#include "store/base/mutex.h"
#include "store/store.h"

namespace kvcachefs {

class FileHandles;

// How long the kernel may trust what it was told. All that changes names goes through this kernel, which then corrects
// what it holds; the daemon changes none by itself. So these bound what the daemon does not see, not what clients see.
//
// Files, present or absent, for a second: the probe is then the LOOKUP of the open or the create that follows, and the next
// probe is seen again: it says what will be read or written next.
inline constexpr double kEntryTimeoutSeconds = 1.0;
inline constexpr double kAbsentTimeoutSeconds = 1.0;
inline constexpr double kAttributeTimeoutSeconds = 1.0;
// Of directories, names and attributes: a path of a chunk is several, and looking them up again tells nothing.
inline constexpr double kDirectoryTimeoutSeconds = 600.0;

struct Driver {
  Driver();
  ~Driver();
  Store* store = nullptr;
  fuse_session* session = nullptr;
  MountOptions options;
  std::string mountpoint, volume_path;
  const int64_t started_s = std::time(nullptr);
  bool volume_is_stacked = false;  // it lies on a file system that is stacked on another
  std::unique_ptr<FileHandles> handles;
  Passthrough passthrough;
  SideThread side_thread;
  FileLocks locks;
  std::atomic<bool> direct_io_mmap{false};  // the kernel lets direct_io files be mmapped

  // What is lost on this machine, for people; empty: nothing.
  std::string features() const {
    std::lock_guard lock(mutex_);
    return features_;
  }
  void add_lost_feature(std::string_view text) {
    std::lock_guard lock(mutex_);
    features_ += text;
  }
  // Whether requests come over io_uring, and else why not.
  bool ring_used() const {
    std::lock_guard lock(mutex_);
    return ring_used_;
  }
  std::string ring_state() const {
    std::lock_guard lock(mutex_);
    return ring_state_;
  }
  void set_ring(bool used, std::string_view state) {
    std::lock_guard lock(mutex_);
    ring_used_ = used;
    ring_state_ = state;
  }
  std::vector<OptionText> options_text() const {
    std::lock_guard lock(mutex_);
    return mount_options_text(options);
  }
  Status set_option(std::string_view name, std::string_view value) {
    std::lock_guard lock(mutex_);
    return set_mount_option_live(options, name, value);
  }

 private:
  mutable LeafMutex mutex_;  // guards what follows, and what of `options` can be changed while mounted
  std::string features_;
  bool ring_used_ = false;
  std::string ring_state_;
};

inline Driver& driver_of(fuse_req_t request) { return *static_cast<Driver*>(fuse_req_userdata(request)); }
Caller caller_of(fuse_req_t request);
inline void reply_error(fuse_req_t request, const Error& error) { fuse_reply_err(request, errno_of(error)); }
// What the kernel was told of is gone, be it the object or the directory: it looks the name up again, and learns what it
// means now. Nearly all system calls repeat that way by themselves, once.
// What it then finds is kept until the call is repeated. `by_name`: the call is about a name in a directory; where that is
// repeated, it is not there.
enum class Gone : uint8_t { kObject, kName };
inline void reply_object_error(fuse_req_t request, const Error& error, Gone what = Gone::kObject) {
  const bool again = error.code == Code::kNotFound && driver_of(request).store->may_look_again(caller_of(request), what == Gone::kName);
  fuse_reply_err(request, again ? ESTALE : errno_of(error));
}
inline void reply_object_status(fuse_req_t request, const Status& status, Gone what = Gone::kObject) {
  if (!status) return reply_object_error(request, status.error(), what);
  fuse_reply_err(request, 0);
}
// For completions without a value.
inline void reply_status(fuse_req_t request, const Status& status) {
  fuse_reply_err(request, status ? 0 : errno_of(status.error()));
}
// Replies when it completes.
inline StatusCompletion replying(fuse_req_t request) {
  return [request](Status status) { reply_status(request, status); };
}

// In a handler: what its call of the store wants read ahead is begun when this ends, after an answer given at once.
class ReadAheadAfterAnswer {
 public:
  explicit ReadAheadAfterAnswer(Store& store) : store_(store) { store_.hold_read_ahead(); }
  ~ReadAheadAfterAnswer() { store_.resume_read_ahead(); }
  ReadAheadAfterAnswer(const ReadAheadAfterAnswer&) = delete;
  ReadAheadAfterAnswer& operator=(const ReadAheadAfterAnswer&) = delete;

 private:
  Store& store_;
};

// nodeid -> object: they are the same but for alias nodeids (passthrough.h).
ObjectId object_of(fuse_req_t request, fuse_ino_t node);
struct stat to_stat(const Stat& stat);
fuse_entry_param to_entry(Driver& driver, const Stat& stat);
void reply_attributes(fuse_req_t request, const Stat& stat);

// fi->fh is the store's handle; its lowest bit says that the open was passed through, the next that its closes are not told
// (FOPEN_NOFLUSH).
inline constexpr uint64_t kPassedThroughBit = 1, kUnseenCloseBit = 2;
inline Handle* handle_of(const fuse_file_info* file) {
  return reinterpret_cast<Handle*>(file->fh & ~(kPassedThroughBit | kUnseenCloseBit));
}

// Each family fills in its operations.
void add_name_operations(fuse_lowlevel_ops& operations);
void add_attribute_operations(fuse_lowlevel_ops& operations);
void add_data_operations(fuse_lowlevel_ops& operations);
void add_copy_operations(fuse_lowlevel_ops& operations);
void add_directory_operations(fuse_lowlevel_ops& operations);
void add_lock_operations(fuse_lowlevel_ops& operations);

// Whether who opens with O_TRUNC, or writes, may not keep set-id bits. A libfuse that does not tell has no field for it.
template <class File>
constexpr bool kTellsOfPrivileges = requires(const File& file) { file.kill_suidgid; };
template <class File>
bool drops_privileges(const File& file) {
  if constexpr (kTellsOfPrivileges<File>) return file.kill_suidgid;
  return false;
}
// Whether the caller of a request that is not answered yet is in the group.
std::function<bool(uint32_t gid)> groups_of(fuse_req_t request);

// data.cc: what an open answers (also create's). `handle` is what it opened.
void set_open_flags(Driver& driver, fuse_file_info& file, Handle* handle);
OpenRequest open_request_of(int flags);
// Of the file that is changed by a request that does not tell whether its caller may keep set-id bits: root may.
void drop_privileges_of(fuse_req_t request, fuse_file_info* file);

}  // namespace kvcachefs
