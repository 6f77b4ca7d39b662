#include "fs/mountpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/mountinfo.h"

namespace kvcachefs {

namespace {

// Makes the path absolute without resolving its last part, which may be a dead mount.
Result<std::string> absolute(const std::string& path) {
  if (path.empty()) return fail(Code::kInvalid, "an empty path");
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : trimmed.substr(0, slash);
  const std::string last = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
  if (last == "." || last == ".." || last.empty()) {
    char* whole = realpath(trimmed.c_str(), nullptr);
    if (whole == nullptr) return fail_errno(errno, path);
    std::string result(whole);
    free(whole);
    return result;
  }
  char* resolved = realpath(parent.c_str(), nullptr);
  if (resolved == nullptr) return fail_errno(errno, fmt::format("{}: its parent directory {}", path, parent));
  std::string result(resolved);
  free(resolved);
  return result == "/" ? "/" + last : result + "/" + last;
}

// Returns the path of a directory without symbolic links. Sends no request to the daemon of a mount there.
Result<std::string> path_without_links(const std::string& path) {
  const UniqueFd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return fail_errno(errno, fmt::format("mountpoint {}", path));
  std::error_code error;
  const std::string result = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", directory.get()), error).string();
  if (error) return fail_errno(error.value(), fmt::format("mountpoint {}", path));
  return result;
}

size_t mounts_on(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  size_t count = 0;
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream fields(line);
    std::string id, parent, device, root, where;
    fields >> id >> parent >> device >> root >> where;
    count += unescape_mountinfo(where) == path;
  }
  return count;
}

// Without "." and "..".
Result<size_t> count_entries(UniqueFd descriptor, const std::string& path) {
  DIR* directory = descriptor.valid() ? fdopendir(descriptor.get()) : nullptr;
  if (directory == nullptr) return fail_errno(errno, path);
  static_cast<void>(descriptor.release());  // closedir() closes it
  size_t count = 0;
  while (const dirent* entry = readdir(directory))
    count += std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0;
  closedir(directory);
  return count;
}

}  // namespace

bool is_dead(const std::string& mountpoint) {
  // statfs always asks the daemon; a stat can be answered from the kernel's cache for a second after the daemon died.
  struct statfs space {};
  return ::statfs(mountpoint.c_str(), &space) != 0 && means_dead(errno);
}

UniqueFd open_bare_directory(const std::string& path) { return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }

bool means_dead(int problem) { return problem == ENOTCONN || problem == ECONNABORTED; }

std::optional<MountedThere> mounted_on(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::optional<MountedThere> found;
  std::string line, found_parent;
  while (std::getline(mounts, line)) {
    std::istringstream fields(line);
    std::string id, parent, device, root, where, options, word, type, source, of_file_system;
    fields >> id >> parent >> device >> root >> where >> options;
    if (unescape_mountinfo(where) != path) continue;
    if (found && id == found_parent) continue;  // the mount found before lies on top of this one
    while (fields >> word && word != "-") {
    }
    if (!(fields >> type >> source >> of_file_system)) continue;
    found = {type, unescape_mountinfo(source), device, options + "," + of_file_system};
    found_parent = parent;
  }
  return found;
}

std::optional<MountedThere> mount_of(const std::string& volume, const std::string& mountpoint) {
  auto there = mounted_on(mountpoint);
  if (there && (there->type != kMountType || there->source != volume)) there.reset();
  return there;
}

bool lazily_unmount(const std::string& path) {
  if (umount2(path.c_str(), MNT_DETACH) == 0) return true;
  const pid_t child = fork();
  if (child == 0) {
    execlp("fusermount3", "fusermount3", "-u", "-z", path.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = -1;
  if (child > 0) waitpid(child, &status, 0);
  return status == 0;
}

Result<PreparedMountpoint> prepare_mountpoint(const std::string& path, bool nonempty) {
  KVC_ASSIGN(std::string where, absolute(path));
  if (is_dead(where)) {
    KVC_ASSIGN(where, path_without_links(where));
    // A start that was killed can have left a second dead mount below: while one is left, the bare directory stays hidden.
    for (auto there = mounted_on(where); there && is_dead(where); there = mounted_on(where)) {
      if (there->type != kMountType)
        return fail(Code::kBusy, fmt::format("mountpoint {} is a dead mount of {} ({}); unmount it first: umount -l {}", where, there->type, there->source, where));
      if (mounts_on(where) > 1 && lazily_unmount(where)) continue;
      log::warn("{} was left by a daemon that died; the new mount takes its place", where);
      return PreparedMountpoint{.path = where, .dead_device = there->device};
    }
  }
  struct stat info {};
  if (::stat(where.c_str(), &info) != 0)
    return fail_errno(errno, fmt::format("mountpoint {} (make the directory first)", where));
  if (!S_ISDIR(info.st_mode)) return fail(Code::kNotDirectory, fmt::format("mountpoint {} is not a directory", where));
  if (char* resolved = realpath(where.c_str(), nullptr)) {  // its last part may be a symbolic link, even into the volume
    where = resolved;
    free(resolved);
  }
  if (mounted_on(where))
    return fail(Code::kBusy, fmt::format("mountpoint {} has something mounted on it already; unmount that first", where));
  KVC_ASSIGN(const size_t entries, count_entries(open_bare_directory(where), fmt::format("mountpoint {}", where)));
  if (entries > 0 && !nonempty)
    return fail(Code::kNotEmpty, fmt::format("mountpoint {} is not empty: its files would be hidden; -o nonempty mounts all the same", where));
  return PreparedMountpoint{.path = where, .dead_device = {}};
}

void warn_of_hidden(UniqueFd directory, const std::string& mountpoint) {
  const auto entries = count_entries(std::move(directory), mountpoint);
  if (!entries) return log::warn("whether files are hidden below the mount cannot be seen: {}", entries.error().message);
  if (*entries == 0) return;
  const std::string parent = mountpoint.substr(0, std::max<size_t>(mountpoint.rfind('/'), 1));
  log::warn("{}: {} entries of the directory below the mount are hidden (written while nothing was mounted?) and take room on that disk; "
            "`mount --bind {} DIRECTORY` shows them in DIRECTORY{}",
            mountpoint, *entries, parent, mountpoint.substr(parent == "/" ? 0 : parent.size()));
}

Result<std::string> prepare_volume(const std::string& path, bool may_create) {
  KVC_ASSIGN(std::string where, absolute(path));
  struct stat info {};
  if (::stat(where.c_str(), &info) != 0) {
    if (errno != ENOENT) return fail_errno(errno, fmt::format("volume {}", where));
    if (!may_create)
      return fail(Code::kNotFound, fmt::format("volume {} does not exist, and create=off: mount its file system, or mount once without create=off to make a new volume", where));
    // EEXIST: another node made it at this moment.
    if (mkdir(where.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, fmt::format("volume {} cannot be made", where));
    if (::stat(where.c_str(), &info) != 0) return fail_errno(errno, fmt::format("volume {}", where));
  }
  if (!S_ISDIR(info.st_mode)) {
    return fail(Code::kNotDirectory, fmt::format("volume {} is not a directory", where));
  }
  char* resolved = realpath(where.c_str(), nullptr);
  if (resolved == nullptr) return fail_errno(errno, fmt::format("volume {}", where));
  where = resolved;
  free(resolved);
  return where;
}

bool is_stacked(const std::string& volume) {
  constexpr long kOverlayfs = 0x794c7630, kFuse = 0x65735546, kEcryptfs = 0xf15f;
  struct statfs space {};
  if (::statfs(volume.c_str(), &space) != 0) return false;
  const long type = static_cast<long>(space.f_type);
  return type == kOverlayfs || type == kFuse || type == kEcryptfs;
}

namespace {
bool inside(const std::string& inner, const std::string& outer) {
  return inner == outer || (inner.starts_with(outer) && (outer == "/" || inner[outer.size()] == '/'));
}
}  // namespace

Status check_apart(const std::string& volume, const std::string& mountpoint) {
  if (inside(mountpoint, volume))
    return fail(Code::kInvalid, fmt::format("mountpoint {} lies inside the volume {}: choose one outside", mountpoint, volume));
  if (inside(volume, mountpoint))
    return fail(Code::kInvalid, fmt::format("volume {} lies inside the mountpoint {}: it would be hidden", volume, mountpoint));
  return {};
}

Status check_outside(const char* option, const std::string& path, const char* what, const std::string& directory) {
  if (path.empty()) return {};
  std::error_code error;
  const std::string real = std::filesystem::weakly_canonical(path, error).string();
  if (error || !inside(real, directory)) return {};  // the code that opens the path reports its errors
  return fail(Code::kInvalid, fmt::format("option {}: {} lies inside {} {}: choose a path outside", option, path, what, directory));
}

}  // namespace kvcachefs
