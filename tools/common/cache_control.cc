#include "tools/common/cache_control.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "tools/common/fd.h"
#include "tools/common/mount_status.h"

namespace kvcachefs {
namespace {

constexpr const char* kFlushAttribute = "user.kvcachefs.flush";
constexpr const char* kDropAttribute = "user.kvcachefs.drop_caches";

// 0 or the errno.
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

}  // namespace

Status drain_writes(const std::string& directory) {
  if (const auto mount = read_mount_status(directory)) {
    const int failed = set_attribute(mount->root, kFlushAttribute);
    if (failed != 0) return fail_errno(failed, mount->root + ": set " + kFlushAttribute);
    return {};
  }
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(errno, directory + ": open");
  if (::syncfs(fd.get()) != 0) return fail_errno(errno, directory + ": syncfs");
  return {};
}

Result<std::vector<std::string>> drop_caches(const std::string& directory) {
  std::vector<std::string> notes;
  struct statfs info;
  if (::statfs(directory.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
    notes.push_back(file_system_root(directory) + " is in memory (tmpfs): its \"cold\" reads are warm");
    return notes;
  }
  KVC_TRY(drain_writes(directory));
  if (const int refused = drop_page_cache_of_machine(); refused != 0) {
    notes.push_back(std::string("/proc/sys/vm/drop_caches: ") + std::strerror(refused) +
                    ": caches were dropped file by file; names and attributes stay cached (run as root to drop all)");
    KVC_TRY(drop_page_cache_of_files(directory));
  }
  // Last: dropping file by file opens them, and a kvcachefs reads ahead from there.
  if (const auto mount = read_mount_status(directory)) {
    if (const int failed = set_attribute(mount->root, kDropAttribute); failed != 0) {
      notes.push_back(mount->root + ": " + kDropAttribute + ": " + std::strerror(failed) +
                      ": the daemon's memory was not dropped, its \"cold\" reads may be warm");
    }
  }
  return notes;
}

}  // namespace kvcachefs
