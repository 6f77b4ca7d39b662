#include "store/volume/lock_probe.h"

#include <fcntl.h>

#include <cerrno>

#include "store/base/unique_fd.h"

namespace kvcachefs {

Result<bool> is_locked(Volume& volume, const std::string& path) {
  auto file = volume.open(path, {});
  if (!file && file.error().code == Code::kNotFound) return false;
  KVC_TRY(file);
  const int descriptor = (*file)->descriptor();
  if (descriptor < 0) {
    const auto taken = volume.lock(path);
    if (!taken && taken.error().code != Code::kBusy) return std::unexpected(taken.error());
    return !taken;
  }
  struct flock whole_file {};  // l_pid must be 0 for open file description locks
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  if (retry_interrupted([&] { return ::fcntl(descriptor, F_OFD_GETLK, &whole_file); }) != 0)
    return fail_errno(errno, path + ": look at its lock (the file system must support fcntl locks)");
  return whole_file.l_type != F_UNLCK;
}

}  // namespace kvcachefs
