#include "store/volume/posix_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {

constexpr mode_t kFileMode = 0600;  // access is checked by the mount above
constexpr int kNoFileErrno = ENOTSOCK;  // `sys_errno` of the error for something that is neither a file nor a directory; no call here returns it otherwise

int open_at2(int directory_fd, const char* path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = (flags & O_CREAT) != 0 ? kFileMode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  while (true) {
    const long fd = ::syscall(SYS_openat2, directory_fd, path, &how, sizeof how);
    if (fd >= 0 || (errno != EINTR && errno != EAGAIN)) return static_cast<int>(fd);  // EAGAIN: a rename happened meanwhile
  }
}

std::string kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISREG(mode)) return "a file";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::unexpected<Error> foreign(const std::string& place, const std::string& what, int sys_errno = 0) {
  return std::unexpected(Error{Code::kIo, sys_errno, place + ": is " + what + ", which no kvcachefs has made; remove it, or put back what was there"});
}

std::unexpected<Error> no_file(const std::string& place, mode_t mode) {
  auto error = foreign(place, kind_of(mode), S_ISDIR(mode) ? EISDIR : kNoFileErrno);
  if (S_ISDIR(mode)) error.error().code = Code::kIsDirectory;
  return error;
}

// Tells from errno and from what is there why the directory was not opened.
std::unexpected<Error> no_directory(int directory_fd, const std::string& path, const std::string& place) {
  const int error = errno;
  if (struct stat there {}; ::fstatat(directory_fd, path.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(there.st_mode))
    return no_file(place, there.st_mode);
  return fail_errno(error, place + ": open directory");
}

struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

}  // namespace

bool is_no_file(const Error& error) {
  return error.code == Code::kIsDirectory || (error.code == Code::kIo && error.sys_errno == kNoFileErrno);
}

bool is_not_there(const Error& error) {
  return error.code == Code::kNotFound || error.code == Code::kNotDirectory || is_no_file(error) || (error.code == Code::kIo && error.sys_errno == ELOOP);
}

PosixTree::PosixTree(UniqueFd root_fd, std::string root, bool openat2) : root_fd_(std::move(root_fd)), root_(std::move(root)) {
  // Older kernels and some containers lack openat2, and their errors differ: so tries it once.
  if (openat2) openat2_ = UniqueFd(open_at2(root_fd_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC)).valid();
}

Result<PosixTree> PosixTree::open(const std::string& path) {
  UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
  if (!fd.valid()) return no_directory(AT_FDCWD, path, path);
  return PosixTree(std::move(fd), path, /*openat2=*/true);
}

Result<PosixTree> PosixTree::below(const std::string& path) const {
  UniqueFd fd = open_beneath(path, O_RDONLY | O_DIRECTORY);
  if (!fd.valid()) return no_directory(root_fd_.get(), path, place_in(root_, path));
  return PosixTree(std::move(fd), place_in(root_, path), openat2_);
}

UniqueFd PosixTree::open_beneath(const std::string& path, int flags) const {
  if (openat2_) return UniqueFd(open_at2(root_fd_.get(), path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  return walk(path, flags);
}

UniqueFd PosixTree::walk(std::string_view path, int flags) const {
  UniqueFd directory;
  const auto here = [&] { return directory.valid() ? directory.get() : root_fd_.get(); };
  for (size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
    const std::string name(path.substr(0, slash));
    UniqueFd next(retry_interrupted([&] { return ::openat(here(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
    if (!next.valid()) return next;
    directory = std::move(next);
    path.remove_prefix(slash + 1);
  }
  const std::string name(path);
  UniqueFd found(retry_interrupted([&] { return ::openat(here(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kFileMode); }));
  const int error = errno;
  directory.reset();
  errno = error;
  return found;
}

std::unexpected<Error> PosixTree::failed(const std::string& path, const char* verb) const {
  const int error = errno;
  const std::string place = place_in(root_, path);
  if (error == ELOOP) return foreign(place, "or lies behind a symbolic link", ELOOP);
  if (error == ENXIO) return foreign(place, "a FIFO or a device");
  return fail_errno(error, place + ": " + verb);
}

Result<UniqueFd> PosixTree::open_file(const std::string& path, int flags, const char* verb) const {
  const std::string place = place_in(root_, path);
  // Opening a device or a FIFO has side effects, so the type is checked first; the check below finds what was swapped in meanwhile.
  if (struct stat there {}; (flags & O_EXCL) == 0 && ::fstatat(root_fd_.get(), path.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                            !S_ISREG(there.st_mode))
    return no_file(place, there.st_mode);
  UniqueFd fd = open_beneath(path, flags | O_NONBLOCK | O_NOCTTY);
  if (!fd.valid()) return failed(path, verb);
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return fail_errno(errno, place + ": fstat");
  if (!S_ISREG(found.st_mode)) return no_file(place, found.st_mode);
  // Clear O_NONBLOCK: where a file system cannot answer at once, io_uring would fail the read instead of waiting.
  if (::fcntl(fd.get(), F_SETFL, flags & O_DIRECT) != 0) return fail_errno(errno, place + ": fcntl");
  // 0 names is fine: the file was removed just now.
  if (found.st_nlink > 1) return foreign(place, "a file with " + std::to_string(found.st_nlink) + " names (hard links)");
  return fd;
}

Result<UniqueFd> PosixTree::open_directory(const std::string& path) const {
  UniqueFd fd = open_beneath(is_root_path(path) ? "." : path, O_RDONLY | O_DIRECTORY);
  if (!fd.valid()) return failed(path, "open directory");
  return fd;
}

Result<bool> PosixTree::entry_is_directory(int directory_fd, const dirent& entry, const std::string& path) const {
  if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat attributes {};
  if (::fstatat(directory_fd, entry.d_name, &attributes, AT_SYMLINK_NOFOLLOW) == 0) return S_ISDIR(attributes.st_mode);
  if (errno == ENOENT) return false;  // removed meanwhile
  return fail_errno(errno, place_in(root_, path) + "/" + entry.d_name + ": stat");
}

Result<std::vector<DirectoryEntry>> PosixTree::list(const std::string& path) const {
  KVC_ASSIGN(UniqueFd fd, open_directory(path));
  const std::unique_ptr<DIR, CloseDirectory> stream(::fdopendir(fd.get()));
  if (!stream) return fail_errno(errno, place_in(root_, path) + ": list");
  const int directory_fd = fd.release();  // now the stream closes it
  std::vector<DirectoryEntry> entries;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    KVC_ASSIGN(const bool is_directory, entry_is_directory(directory_fd, *entry, path));
    entries.push_back({std::string(name), is_directory});
  }
  if (errno != 0) return fail_errno(errno, place_in(root_, path) + ": list");
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
  return entries;
}

Result<struct stat> PosixTree::info(const std::string& path) const {
  const std::string place = place_in(root_, path);
  struct stat found {};
  KVC_ASSIGN(const Entry entry, this->entry(path));
  if (retry_interrupted([&] { return ::fstatat(entry.directory_fd, entry.name.c_str(), &found, AT_SYMLINK_NOFOLLOW); }) != 0)
    return fail_errno(errno, place + ": stat");
  if (!S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) return no_file(place, found.st_mode);
  return found;
}

Result<PosixTree::Entry> PosixTree::entry(const std::string& path) const {
  if (is_root_path(path)) return Entry{UniqueFd(), root_fd_.get(), "."};
  const std::string parent(parent_path(path));
  if (parent.empty()) return Entry{UniqueFd(), root_fd_.get(), path};
  UniqueFd directory = open_beneath(parent, O_PATH | O_DIRECTORY);
  if (!directory.valid()) return failed(parent, "open directory");
  const int fd = directory.get();
  return Entry{std::move(directory), fd, path.substr(parent.size() + 1)};
}

}  // namespace kvcachefs
