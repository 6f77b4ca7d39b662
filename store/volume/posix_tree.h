// Opens files below a directory without ever leaving it. Whoever may write to a volume, or made its image, may have planted
// links in it, and the daemon and fsck run as root. So no symbolic link below the root is followed, neither on the way nor at the end,
// and only regular files without a second name are opened. (The path of the root itself is the administrator's, who may use
// links. Mounts below the root are followed: making one needs the same rights.)
#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "store/base/result.h"
#include "store/base/unique_fd.h"
#include "store/volume/volume.h"

struct dirent;
struct stat;

namespace kvcachefs {

// Paths must have passed check_path(). Thread-safe. Every call may block on the file system.
class PosixTree {
 public:
  // For a directory that another user may have planted: `path` itself must not be a link either. kNotFound: it does not exist.
  static Result<PosixTree> open(const std::string& path);
  // `openat2`: use it if the kernel has it; else each directory on the way is opened by itself. `root` is for messages.
  PosixTree(UniqueFd root_fd, std::string root, bool openat2);

  int root_fd() const { return root_fd_.get(); }
  // Opens a regular file with one name. `flags` as for open(2); O_CREAT makes it with mode 0600. Never blocks on a FIFO.
  Result<UniqueFd> open_file(const std::string& path, int flags, const char* verb) const;
  Result<UniqueFd> open_directory(const std::string& path) const;  // "" is the root
  Result<PosixTree> below(const std::string& path) const;          // as open()
  Result<std::vector<DirectoryEntry>> list(const std::string& path) const;  // sorted by name; "" is the root
  // `path` must be a directory or a regular file; anything else is an error.
  Result<struct stat> info(const std::string& path) const;

  // Directory and name of a path: for calls that make, remove or rename an entry, which follow no link at the end.
  struct Entry {
    UniqueFd directory;  // invalid: the root
    int directory_fd = -1;
    std::string name;
  };
  Result<Entry> entry(const std::string& path) const;

 private:
  UniqueFd open_beneath(const std::string& path, int flags) const;  // sets errno on failure
  UniqueFd walk(std::string_view path, int flags) const;
  std::unexpected<Error> failed(const std::string& path, const char* verb) const;
  Result<bool> entry_is_directory(int directory_fd, const dirent& entry, const std::string& path) const;

  UniqueFd root_fd_;
  std::string root_;
  bool openat2_ = false;
};

}  // namespace kvcachefs
