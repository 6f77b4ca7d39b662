// Shared by the request handlers. One file per family of requests; every handler decodes, makes one call of the store, and
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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/control_texts.h"
#include "fs/errno_map.h"
#include "fs/handle_bits.h"
#include "fs/interruptible_answers.h"
#include "fs/listings.h"
#include "fs/locks.h"
#include "fs/name_invalidator.h"
#include "fs/options.h"
#include "fs/passthrough.h"
#include "fs/request.h"
#include "fs/side_thread.h"
#include "store/base/mutex.h"
#include "store/gc/caretaker.h"
#include "store/store.h"

namespace kvcachefs {

class FileHandles;

// How long the kernel may trust an answer. Every change of a name by a client goes through this kernel, which then corrects its caches; the
// daemon tells it of names that it evicts (name_invalidator.h). So these times only limit how many requests the daemon sees; clients see every change at once.
//
// Files, present or absent: one second. A probe is then the LOOKUP of the open or create that follows, and the daemon sees the next probe
// of the same name again. Probes tell which chunk will be read or written next.
inline constexpr double kEntryTimeoutSeconds = 1.0;
inline constexpr double kAbsentTimeoutSeconds = 1.0;
inline constexpr double kAttributeTimeoutSeconds = 1.0;
// Directories, names and attributes: the path of a chunk has several of them, and looking them up again tells the daemon nothing.
inline constexpr double kDirectoryTimeoutSeconds = 600.0;
// On a shared volume: other nodes change names and this kernel is not notified. A new name must be found soon. Until the time is over, the
// use of a name that another node removed or moved is answered ESTALE.
inline constexpr double kSharedAbsentTimeoutSeconds = 0.25;
inline constexpr double kSharedDirectoryTimeoutSeconds = 10.0;

struct Driver {
  Driver();
  ~Driver();
  Store* store = nullptr;
  fuse_session* session = nullptr;
  MountOptions options;
  std::string mountpoint, volume_path;
  std::string dead_device;  // device of a dead mount found at the mountpoint, which the new mount replaces; else empty
  bool found_dead_mount() const { return !dead_device.empty(); }
  bool mounted_by_itself = false;  // by NewMount, not by libfuse; libfuse then does not unmount either
  const int64_t started_s = std::time(nullptr);
  bool volume_is_stacked = false;  // the volume lies on a file system that is stacked on another
  std::unique_ptr<FileHandles> handles;
  Passthrough passthrough;
  SideThread side_thread, copies;  // `copies`: of copy_file_range; jobs of the other may wait for a process that waits for a file that is copied to
  FileLocks locks;
  Listings listings;
  ControlTexts control_texts;
  InterruptibleAnswers interruptible;
  NameInvalidator gone_names;
  std::optional<Caretaker> caretaker;  // while requests are served
  std::atomic<bool> direct_io_mmap{false};  // the kernel lets direct_io files be mmapped

  double absent_timeout_seconds() const { return store->has_peers() ? kSharedAbsentTimeoutSeconds : kAbsentTimeoutSeconds; }
  double timeout_seconds(bool directory) const {
    if (!directory) return kEntryTimeoutSeconds;
    return store->has_peers() ? kSharedDirectoryTimeoutSeconds : kDirectoryTimeoutSeconds;
  }

  // The features that this machine does not offer, as text for people; empty if it offers all.
  std::string features() const {
    std::lock_guard lock(mutex_);
    return features_;
  }
  void add_lost_feature(std::string_view text) {
    std::lock_guard lock(mutex_);
    features_ += text;
  }
  // Whether requests come over io_uring; ring_state() tells why not.
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
  mutable LeafMutex mutex_;  // guards the members below, and those of `options` that can be changed while mounted
  std::string features_;
  bool ring_used_ = false;
  std::string ring_state_;
};

inline Driver& driver_of(const Request& request) { return *static_cast<Driver*>(fuse_req_userdata(request)); }
Caller caller_of(const Request& request);
inline void reply_error(const Request& request, const Error& error) { fuse_reply_err(request, errno_to_answer(error)); }
// Replies an error. If the object or the directory that the kernel named is gone, the answer is ESTALE: the kernel looks the name up
// again and repeats the system call, once (nearly every call). The store keeps the object that this lookup finds until the call is
// repeated. Gone::kName: the call is about a name in a directory; if the name is absent at the repetition, the answer is ENOENT. `create`: the
// call is to create a file, with these flags.
enum class Gone : uint8_t { kObject, kName };
inline void reply_object_error(const Request& request, const Error& error, Gone what = Gone::kObject, const std::optional<OpenRequest>& create = {}) {
  if (error.code != Code::kNotFound && error.code != Code::kStale) return reply_error(request, error);
  const bool again = driver_of(request).store->may_look_again(caller_of(request), what == Gone::kName, create);
  fuse_reply_err(request, again ? ESTALE : ENOENT);
}
inline void reply_object_status(const Request& request, const Status& status, Gone what = Gone::kObject) {
  if (!status) return reply_object_error(request, status.error(), what);
  fuse_reply_err(request, 0);
}
inline void reply_value(const Request& request, std::string_view value, size_t size) {  // the value of an xattr
  if (size == 0) return void(fuse_reply_xattr(request, value.size()));
  if (value.size() > size) return void(fuse_reply_err(request, ERANGE));
  fuse_reply_buf(request, value.data(), value.size());
}
inline void reply_status(const Request& request, const Status& status) {
  fuse_reply_err(request, status ? 0 : errno_to_answer(status.error()));
}
// Returns a completion that replies with its status.
inline StatusCompletion replying(const Request& request) {
  return [request](Status status) { reply_status(request, status); };
}

// nodeid -> object. The two are equal except for alias nodeids (passthrough.h).
ObjectId object_of(const Request& request, fuse_ino_t node);
struct stat to_stat(const Stat& stat);
// The attributes that a nodeid shows.
Result<Stat> stat_shown(Driver& driver, ObjectId node);
// Makes the entry for a reply. If the reply fails, or carries another nodeid instead, call Passthrough::forget_node() for this entry's nodeid.
fuse_entry_param to_entry(Driver& driver, const Stat& stat);
fuse_entry_param to_entry(Driver& driver, ObjectId node, const Stat& shown);  // the same for a nodeid for which Passthrough was called already
void reply_attributes(const Request& request, const Stat& stat);

// Each family fills in its operations.
void add_name_operations(fuse_lowlevel_ops& operations);
void add_attribute_operations(fuse_lowlevel_ops& operations);
void add_data_operations(fuse_lowlevel_ops& operations);
void add_copy_operations(fuse_lowlevel_ops& operations);
void add_directory_operations(fuse_lowlevel_ops& operations);
void add_lock_operations(fuse_lowlevel_ops& operations);

// True if a write, or an open with O_TRUNC, must clear the set-id bits of the file. Older versions of libfuse have no such field.
template <class File>
constexpr bool kTellsOfPrivileges = requires(const File& file) { file.kill_suidgid; };
template <class File>
bool drops_privileges(const File& file) {
  if constexpr (kTellsOfPrivileges<File>) return file.kill_suidgid;
  return false;
}
// Returns a function that tells whether the caller is in a group. Use it only before the request is answered.
std::function<bool(uint32_t gid)> groups_of(const Request& request);

// data.cc: fills in the reply to an open or create. `handle` is the store's.
void set_open_flags(Driver& driver, fuse_file_info& file, Handle* handle);
OpenRequest open_request_of(int flags);
// Replies to a write that must be synced before its reply: does what FSYNC does, then replies the count or the error.
void reply_written_and_synced(const Request& request, Handle* handle, size_t count);
// Clears the set-id bits of a file and notifies the kernel, which would not ask for the mode again after a write or an open.
void drop_privileges(const Request& request, fuse_ino_t node, Handle* handle);
// The same for requests that do not tell whether the caller may keep the bits. Root may.
void drop_privileges_of(const Request& request, fuse_ino_t node, fuse_file_info* file);

}  // namespace kvcachefs
