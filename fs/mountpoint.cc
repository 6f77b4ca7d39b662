#include "fs/mountpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/mountinfo.h"

namespace kvcachefs {

namespace {

// Without touching the last part, which may be a dead mount.
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

}  // namespace

std::optional<MountedThere> mounted_on(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::optional<MountedThere> found;
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream fields(line);
    std::string id, parent, device, root, where, options, word, type, source, of_file_system;
    fields >> id >> parent >> device >> root >> where >> options;
    if (unescape_mountinfo(where) != path) continue;
    while (fields >> word && word != "-") {
    }
    if (fields >> type >> source >> of_file_system) found = {type, unescape_mountinfo(source), device, options + "," + of_file_system};
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

Result<std::string> prepare_mountpoint(const std::string& path, bool nonempty) {
  KVC_ASSIGN(std::string where, absolute(path));
  struct stat info {};
  struct statfs space {};
  // statfs always asks the daemon; a stat can be answered from the kernel's cache for a second after it died.
  if (::statfs(where.c_str(), &space) != 0 && (errno == ENOTCONN || errno == ECONNABORTED)) {
    log::warn("{} was left by a daemon that died; unmounting it", where);
    lazily_unmount(where);
  }
  if (::stat(where.c_str(), &info) != 0)
    return fail_errno(errno, fmt::format("mountpoint {} (make the directory first)", where));
  if (!S_ISDIR(info.st_mode)) return fail(Code::kNotDirectory, fmt::format("mountpoint {} is not a directory", where));
  if (char* resolved = realpath(where.c_str(), nullptr)) {  // its last part may be a link, into the volume even
    where = resolved;
    free(resolved);
  }
  if (mounted_on(where))
    return fail(Code::kBusy, fmt::format("mountpoint {} has something mounted on it already; unmount that first", where));
  DIR* directory = opendir(where.c_str());
  if (directory == nullptr) return fail_errno(errno, fmt::format("mountpoint {}", where));
  bool empty = true;
  while (const dirent* entry = readdir(directory))
    empty &= std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0;
  closedir(directory);
  if (!empty && !nonempty)
    return fail(Code::kNotEmpty, fmt::format("mountpoint {} is not empty: its files would be hidden; -o nonempty mounts all the same", where));
  return where;
}

Result<std::string> prepare_volume(const std::string& path) {
  KVC_ASSIGN(std::string where, absolute(path));
  struct stat info {};
  if (::stat(where.c_str(), &info) != 0) {
    if (errno != ENOENT) return fail_errno(errno, fmt::format("volume {}", where));
    if (mkdir(where.c_str(), 0700) != 0) return fail_errno(errno, fmt::format("volume {} cannot be made", where));
  } else if (!S_ISDIR(info.st_mode)) {
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
  if (error || !inside(real, directory)) return {};  // what is wrong with the path is told by who opens it
  return fail(Code::kInvalid, fmt::format("option {}: {} lies inside {} {}: choose a path outside", option, path, what, directory));
}

}  // namespace kvcachefs
