#include "store/index/index_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/index/index.h"
#include "store/journal/file_header.h"

namespace kvcachefs {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCleanMagic = "kvcachefs index closed cleanly";

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_;
};

// f_type of file systems whose files another machine may change, or whose mmap is not coherent. Values of statfs(2);
// FUSE is among them because sshfs and most cluster file systems use it.
constexpr std::array<uint32_t, 19> kNetworkFileSystems = {
    0x6969,      // NFS
    0x517b,      // SMB
    0xfe534d42,  // SMB2
    0xff534d42,  // CIFS
    0x65735546,  // FUSE
    0x0bd00bd0,  // Lustre
    0x00c36400,  // Ceph
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0x01021997,  // 9P
    0x5346414f,  // AFS
    0x6b414653,  // kAFS
    0x01161970,  // GFS2
    0x7461636f,  // OCFS2
    0x20030528,  // OrangeFS
    0x73757245,  // Coda
    0x564c,      // NCP
    0xaad7aaea,  // PanFS
    0x013111a8,  // IBRIX
};

// The directory, or its nearest existing ancestor.
fs::path nearest_existing(const std::string& path) {
  std::error_code ignored;
  fs::path existing = path;
  while (existing.has_relative_path() && !fs::exists(existing, ignored)) existing = existing.parent_path();
  return existing;
}

Status check_local(const std::string& path) {
  const fs::path existing = nearest_existing(path);
  struct statfs info = {};
  if (statfs(existing.c_str(), &info) != 0) return fail_errno(errno, fmt::format("index {}", path));
  const auto type = static_cast<uint32_t>(info.f_type);
  if (!is_network_file_system(type)) return {};
  return fail(Code::kUnsupported,
              fmt::format("index {} is on a network or FUSE file system (type {:#x}), where LMDB is not safe: choose a "
                          "local directory with the option index=",
                          path, type));
}

constexpr std::string_view kLockName = "lock";
// All names that such a directory ever holds.
constexpr std::array<std::string_view, 9> kOwnNames = {"data.mdb",    "lock.mdb",   kLockName, "clean",      "clean.tmp",
                                                       "compact.tmp", "refill.tmp", "damaged", "rebuild.tmp"};

constexpr std::string_view kOwnMark = "kvcachefs index\n";  // the lock file begins with it

std::unexpected<Error> not_ours(const std::string& path, const std::string& why) {
  return fail(Code::kExists,
              fmt::format("index {}: {}: choose an empty or new directory with index= (nothing in it was touched)", path, why));
}

// Refuses links, whatever they lead to, and files that have a second name.
Status check_kind(const std::string& path, const std::string& name, bool directory) {
  struct stat info = {};
  if (lstat(fmt::format("{}/{}", path, name).c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return fail_errno(errno, fmt::format("index {}: {}", path, name));
  }
  if (directory ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode) && info.st_nlink == 1) return {};
  return not_ours(path, fmt::format("'{}' is {}", name, directory ? "no directory" : "no regular file with one name"));
}

// Up to 256 bytes of a small file; empty if there is none.
std::string head_of(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.open()) return {};
  std::string text(256, '\0');
  const ssize_t got = read(fd.get(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// Whether LMDB's page of table names holds all of ours. For an index made before there was a mark, or one that lost it.
bool names_our_tables(const std::string& data) {
  const Fd fd(open(data.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.open()) return false;
  constexpr size_t kPageBytes = 4096;
  std::string piece(256 * kPageBytes, '\0');
  for (uint64_t at = 0; at < kMaxChecksummedBytes; at += piece.size()) {
    const ssize_t got = pread(fd.get(), piece.data(), piece.size(), static_cast<off_t>(at));
    if (got <= 0) return false;
    for (size_t page = 0; page < static_cast<size_t>(got); page += kPageBytes) {
      const std::string_view text = std::string_view(piece).substr(page, kPageBytes);
      constexpr std::array<std::string_view, 5> kTables = {"successors", "extents", "objects", "names", "meta"};
      if (std::ranges::all_of(kTables, [&](std::string_view table) { return text.contains(table); })) return true;
    }
  }
  return false;
}

// LMDB environments of other programs have the same file names, so the mark decides. The lock file may be missing (copies leave it out) or damaged.
bool is_marked(const std::string& path) {
  return head_of(fmt::format("{}/{}", path, kLockName)).starts_with(kOwnMark) || head_of(path + "/clean").starts_with(kCleanMagic) ||
         names_our_tables(path + "/data.mdb");
}

// Whether the directory exists. An error if the path is something else.
Result<bool> has_directory(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    return fail_errno(errno, fmt::format("index {}", path));
  }
  if (!S_ISDIR(info.st_mode)) return not_ours(path, "it is no directory, or a link to one");
  return true;
}

// The directory is moved, removed and made anew as a whole, so it must be an index's, or empty. Changes nothing.
Status check_own(const std::string& path) {
  KVC_ASSIGN(const bool is_there, has_directory(path));
  if (!is_there) return {};
  for (const std::string_view name : kOwnNames)
    KVC_TRY(check_kind(path, std::string(name), name == "refill.tmp" || name == "rebuild.tmp"));
  std::error_code error;
  const bool has_data = fs::exists(path + "/data.mdb", error) || fs::exists(path + "/lock.mdb", error);
  if (has_data && !is_marked(path)) return not_ours(path, "its data is of another program");
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (std::ranges::find(kOwnNames, name) == kOwnNames.end())
      return not_ours(path, fmt::format("it holds '{}', which is not of an index", name));
  }
  if (error) return fail_errno(error.value(), fmt::format("index {}", path));
  return {};
}

Status sync_directory(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.open() || fsync(fd.get()) != 0)
    return fail_errno(errno, fmt::format("index {}: syncing the directory", path));
  return {};
}

Result<int> take_lock(const std::string& path) {
  const std::string file = fmt::format("{}/{}", path, kLockName);
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return fail_errno(errno, fmt::format("index {}: opening its lock file", path));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    // Marked before there is any data. If there is no room for the mark, the tables show whose the data is.
    if (!head_of(file).starts_with(kOwnMark) && pwrite(fd, kOwnMark.data(), kOwnMark.size(), 0) < 0)
      log::warn("index {}: its lock file could not be marked: {}", path, std::strerror(errno));
    return fd;
  }
  const int error = errno;
  close(fd);
  if (error != EWOULDBLOCK) return fail_errno(error, fmt::format("index {}: locking it", path));
  return fail(Code::kBusy,
              fmt::format("index {} is in use by another mount; choose another directory with index=", path));
}

struct Fingerprint {
  uint64_t size_bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const Fingerprint&) const = default;
};

// Reads in pieces: a mapping would have to be guarded against truncation of the file.
Result<Fingerprint> fingerprint(const std::string& path, bool with_checksum) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info = {};
  if (!fd.open() || fstat(fd.get(), &info) != 0) return fail_errno(errno, path);
  Fingerprint print{static_cast<uint64_t>(info.st_size), 0};
  if (!with_checksum || print.size_bytes > kMaxChecksummedBytes) return print;
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  Hasher hasher;
  Bytes buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got < 0) return fail_errno(errno, path);
    if (got == 0) break;
    hasher.update(ByteSpan(buffer).first(static_cast<size_t>(got)));
  }
  print.checksum = hasher.digest();
  return print;
}

// Unlinks the old file first, for it may be another file's second name.
Status write_file(const std::string& path, std::string_view content) {
  unlink(path.c_str());
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.open()) return fail_errno(errno, path);
  const ssize_t put = write(fd.get(), content.data(), content.size());
  if (put < 0) return fail_errno(errno, path);
  if (static_cast<size_t>(put) != content.size()) return fail_errno(ENOSPC, path);
  if (fsync(fd.get()) != 0) return fail_errno(errno, path);
  return {};
}

std::string mark_text(const Fingerprint& print) {
  return fmt::format("{} {} {:016x}\n", kCleanMagic, print.size_bytes, print.checksum);
}

}  // namespace

bool is_network_file_system(uint32_t type) {
  return std::ranges::find(kNetworkFileSystems, type) != kNetworkFileSystems.end();
}

Result<IndexDirectory> IndexDirectory::take(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();  // other paths are made from it by appending
  if (!path.starts_with('/')) return fail(Code::kInvalid, fmt::format("index {}: the path must be absolute", path));
  KVC_TRY(check_local(path));
  KVC_TRY(has_directory(path));
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return fail_errno(error.value(), fmt::format("index {}: making the directory", path));
  KVC_TRY(check_own(path));
  chmod(path.c_str(), 0700);
  KVC_ASSIGN(const int fd, take_lock(path));
  return IndexDirectory(path, fd);
}

IndexDirectory::IndexDirectory(IndexDirectory&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

IndexDirectory& IndexDirectory::operator=(IndexDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_fd_, other.lock_fd_);
  return *this;
}

IndexDirectory::~IndexDirectory() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

std::string default_index_directory(const std::string& root, bool is_network, std::span<const std::byte> uuid, const std::string& node) {
  if (!is_network) return fmt::format("{}/nodes/{}/index", root, node);
  return fmt::format("/var/lib/kvcachefs/{}/{}", uuid_digits(uuid), node);
}

bool leads_to(const std::string& path, int descriptor) {
  struct stat held = {}, named = {};
  return fstat(descriptor, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

Status IndexDirectory::check_in_place() const {
  if (leads_to(fmt::format("{}/{}", path_, kLockName), lock_fd_)) return {};
  return fail(Code::kIo, fmt::format("index {} was moved away", path_));
}

bool IndexDirectory::has_data() const { return access(data_path().c_str(), F_OK) == 0; }

uint64_t IndexDirectory::data_bytes() const {
  struct stat info = {};
  return stat(data_path().c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

Status check_index_directory(const std::string& directory) { return check_own(directory); }

Status check_index_place(const std::string& directory) {
  KVC_TRY(check_local(directory));
  const fs::path existing = nearest_existing(directory);
  struct stat info = {};
  if (stat(existing.c_str(), &info) != 0) return fail_errno(errno, fmt::format("index {}", directory));
  if (!S_ISDIR(info.st_mode)) return fail(Code::kNotDirectory, fmt::format("index {}: {} is not a directory", directory, existing.string()));
  if (existing != fs::path(directory)) {  // only a try shows it: a read-only or full file system, or one that cannot hold it
    std::string probe = (existing / ".kvcachefs-XXXXXX").string();
    if (mkdtemp(probe.data()) == nullptr) return fail_errno(errno, fmt::format("index {}: making a directory in {}", directory, existing.string()));
    rmdir(probe.c_str());
  } else if (access(existing.c_str(), W_OK | X_OK) != 0) {
    return fail_errno(errno, fmt::format("index {}: nothing can be made in it", directory));
  }
  return check_own(directory);
}

Status remove_index(const std::string& directory) {
  KVC_TRY(check_own(directory));
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) return fail_errno(error.value(), "removing the index " + directory);
  return {};
}

Status set_index_aside(const std::string& directory) {
  const std::string aside = directory + ".damaged";
  KVC_TRY(check_own(directory));
  KVC_TRY(check_own(aside));
  std::error_code error;
  fs::remove_all(aside, error);
  if (error) return fail_errno(error.value(), fmt::format("index {}: removing the older {}", directory, aside));
  if (rename(directory.c_str(), aside.c_str()) != 0) {
    return fail_errno(errno, fmt::format("index {}: moving it aside to {}", directory, aside));
  }
  return sync_directory(fs::path(directory).parent_path());
}

Result<IndexDirectory::Close> IndexDirectory::consume_clean_mark() {
  if (access((path_ + "/damaged").c_str(), F_OK) == 0)
    return fail(Code::kCorrupt, fmt::format("index {} was found damaged when it was open last", path_));
  // Left by an earlier process; our lock proves that no such process is alive, and a damaged file could keep LMDB from opening.
  unlink((path_ + "/lock.mdb").c_str());
  std::error_code ignored;
  for (const char* name : {"/compact.tmp", "/refill.tmp", "/rebuild.tmp"}) fs::remove_all(path_ + name, ignored);
  const std::string mark = path_ + "/clean";
  if (access(mark.c_str(), F_OK) != 0) return Close::kUnclean;
  const std::string text = head_of(mark);
  KVC_ASSIGN(const Fingerprint now, fingerprint(data_path(), true));
  if (unlink(mark.c_str()) != 0) return fail_errno(errno, fmt::format("index {}: removing its clean mark", path_));
  KVC_TRY(sync_directory(path_));
  if (text != mark_text(now)) {
    return fail(Code::kCorrupt, fmt::format("index {}: the file is not the one that was closed cleanly", path_));
  }
  return now.size_bytes > kMaxChecksummedBytes ? Close::kUnproved : Close::kProved;
}

Status IndexDirectory::mark_clean() const {
  KVC_TRY(check_in_place());
  KVC_ASSIGN(const Fingerprint print, fingerprint(data_path(), true));
  const std::string temporary = path_ + "/clean.tmp";
  KVC_TRY(write_file(temporary, mark_text(print)));
  if (rename(temporary.c_str(), (path_ + "/clean").c_str()) != 0) {
    return fail_errno(errno, fmt::format("index {}: writing its clean mark", path_));
  }
  return sync_directory(path_);
}

Status IndexDirectory::set_aside() {
  KVC_TRY(check_in_place());
  KVC_TRY(set_index_aside(path_));
  KVC_ASSIGN(IndexDirectory fresh, take(path_));
  *this = std::move(fresh);
  return sync_directory(fs::path(path_).parent_path());
}

Status IndexDirectory::remove_rebuilt() const {
  KVC_TRY(check_in_place());
  std::error_code error;
  fs::remove_all(rebuilt_path(), error);
  if (error) return fail_errno(error.value(), fmt::format("index {}: removing {}", path_, rebuilt_path()));
  return {};
}

Status IndexDirectory::rebuilt() const {
  KVC_TRY(check_in_place());
  KVC_TRY(sync_directory(path_));  // before the "damaged" note is removed
  unlink((path_ + "/damaged").c_str());
  KVC_TRY(remove_rebuilt());
  return sync_directory(path_);
}

Status IndexDirectory::clear() {
  KVC_TRY(check_in_place());
  for (const std::string_view name : kOwnNames) {
    if (name == kLockName) continue;  // we hold its lock
    std::error_code error;
    fs::remove_all(fs::path(path_) / name, error);
    if (error) return fail_errno(error.value(), fmt::format("index {}: removing {}/{}", path_, path_, name));
  }
  return sync_directory(path_);
}

}  // namespace kvcachefs
