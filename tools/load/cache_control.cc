#include "tools/load/cache_control.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "store/base/unique_fd.h"
#include "tools/load/cpu_time.h"
#include "tools/load/interrupt.h"
#include "tools/load/mount_status.h"

namespace kvcachefs {
namespace {

constexpr const char* kFlushAttribute = "user.kvcachefs.flush";
constexpr double kLongestWaitS = 300;  // allows for a RAM cache in front of a slow volume
constexpr const char* kDropAttribute = "user.kvcachefs.drop_caches";
constexpr const char* kRefreshAttribute = "user.kvcachefs.refresh";

// Returns 0 or the errno.
int set_attribute(const std::string& root, const char* name) {
  return ::setxattr(root.c_str(), name, "1", 1, 0) == 0 ? 0 : errno;
}

int drop_page_cache_of_machine() {
  const UniqueFd fd(::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return errno;
  return ::write(fd.get(), "3", 1) == 1 ? 0 : errno;
}

Status drop_page_cache_of_files(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_regular_file(error)) continue;
    const UniqueFd fd(::open(it->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.valid()) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  if (error) return fail_errno(error.value(), directory + ": list, to drop its files from the page cache");
  return {};
}

Status sync_file_system(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(errno, directory + ": open");
  if (::syncfs(fd.get()) != 0) return fail_errno(errno, directory + ": syncfs");
  return {};
}

std::optional<double> staged_bytes(const std::string& directory) {
  const auto mount = read_mount_status(directory);
  if (!mount) return std::nullopt;
  const auto found = mount->numbers.find("capacity.staged_bytes");
  return found == mount->numbers.end() ? std::nullopt : std::optional(found->second);
}

// Waits until nothing is staged: the daemon writes staged data out by itself. Writes by others may prevent an end. Returns a sentence that
// says what was done.
Result<std::string> wait_until_unstaged(const std::string& directory) {
  const double end = monotonic_s() + kLongestWaitS;
  for (auto staged = staged_bytes(directory); staged != 0.0; staged = staged_bytes(directory)) {
    if (!staged) return "its file system was synced instead; \"cold\" reads may be warm";
    if (monotonic_s() >= end) return "something was still staged after minutes; \"cold\" reads may be warm";
    KVC_TRY(check_interrupt());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "waited until nothing was staged instead (run as the user of the daemon to drain it)";
}

}  // namespace

Result<Notes> drain_writes(const std::string& directory) {
  const auto mount = read_mount_status(directory);
  if (!mount) {
    KVC_TRY(sync_file_system(directory));
    return Notes();
  }
  const int failed = set_attribute(mount->root, kFlushAttribute);
  if (failed == 0) return Notes();
  if (failed != EACCES && failed != EPERM) return fail_errno(failed, mount->root + ": set " + kFlushAttribute);
  KVC_TRY(sync_file_system(directory));  // data that the kernel has not sent to the daemon yet
  KVC_ASSIGN(const std::string waited, wait_until_unstaged(directory));
  return Notes{mount->root + ": " + kFlushAttribute + ": " + std::strerror(failed) + ": " + waited};
}

Result<Notes> exchange_changes(const std::vector<std::string>& directories) {
  Notes notes;
  if (directories.size() < 2) return notes;
  std::vector<std::string> roots;
  for (const std::string& directory : directories) {
    const auto mount = read_mount_status(directory);
    if (!mount) continue;
    KVC_ASSIGN(const Notes drained, drain_writes(directory));
    notes.insert(notes.end(), drained.begin(), drained.end());
    roots.push_back(mount->root);
  }
  for (const std::string& root : roots) {
    const int failed = set_attribute(root, kRefreshAttribute);
    if (failed == 0) continue;
    notes.push_back(root + ": " + kRefreshAttribute + ": " + std::strerror(failed) +
                    ": it may not have seen yet what the other nodes wrote (run as the user of the daemon)");
  }
  return notes;
}

Result<Notes> drop_caches(const std::string& directory) {
  Notes notes;
  struct statfs info;
  if (::statfs(directory.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
    notes.push_back(file_system_root(directory) + " is in memory (tmpfs): its \"cold\" reads are warm");
    return notes;
  }
  KVC_ASSIGN(const Notes drained, drain_writes(directory));
  notes = drained;
  const int refused = drop_page_cache_of_machine();
  if (refused != 0) {
    notes.push_back(std::string("/proc/sys/vm/drop_caches: ") + std::strerror(refused) +
                    ": caches were dropped file by file; names and attributes stay cached (run as root to drop all)");
    KVC_TRY(drop_page_cache_of_files(directory));
  }
  // Do this last: dropping file by file opens the files, and a kvcachefs then reads ahead.
  if (const auto mount = read_mount_status(directory)) {
    if (const int failed = set_attribute(mount->root, kDropAttribute); failed != 0) {
      notes.push_back(mount->root + ": " + kDropAttribute + ": " + std::strerror(failed) +
                      ": the daemon's memory was not dropped, its \"cold\" reads may be warm");
    }
    // posix_fadvise on a file of the mount does not reach the backing file that its reads go to.
    if (const auto passed = mount->numbers.find("reads.passthrough_opens");
        refused != 0 && passed != mount->numbers.end() && passed->second > 0) {
      notes.push_back(mount->root +
                      ": chunks that are passed through may still be in the page cache of their backing files: their "
                      "\"cold\" reads may be warm (run as root to drop all)");
    }
  }
  return notes;
}

}  // namespace kvcachefs
