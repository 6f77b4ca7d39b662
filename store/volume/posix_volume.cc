// A volume that is a directory of a mounted file system.
#include <fcntl.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/unique_fd.h"
#include "store/base/units.h"
#include "store/volume/io_engine.h"
#include "store/volume/posix_file.h"
#include "store/volume/posix_lock.h"
#include "store/volume/posix_probe.h"
#include "store/volume/posix_tree.h"
#include "store/volume/volume.h"
#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {

// For the daemon's user only: the content may be private to the users of the mount.
constexpr mode_t kDirectoryMode = 0700;

class PosixVolume final : public Volume {
 public:
  PosixVolume(UniqueFd root_fd, std::string root, VolumeFeatures features, std::unique_ptr<IoEngine> engine, bool openat2)
      : root_(std::move(root)),
        features_(std::move(features)),
        tree_(std::move(root_fd), root_, openat2),
        engine_(std::move(engine)) {}

  const VolumeFeatures& features() const override { return features_; }
  const std::string& root() const override { return root_; }

  Result<FilePtr> open(const std::string& path, OpenOptions options) override;
  Status make_directory(const std::string& path) override;
  Status make_directories(const std::string& path) override;
  Status remove_file(const std::string& path) override { return unlink_at(path, 0, "remove"); }
  Status remove_directory(const std::string& path) override {
    return unlink_at(path, AT_REMOVEDIR, "remove directory");
  }
  Status rename(const std::string& from, const std::string& to) override;
  Status publish(const std::string& from, const std::string& to) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  Result<FileInfo> info(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Status sync_everything() override;
  Result<SpaceInfo> space() override;
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override;
  void submit(std::vector<IoRequest> requests) override { engine_->submit(std::move(requests)); }
  void drain() override { engine_->drain(); }
  void expect_reads_for(std::chrono::nanoseconds time) override { engine_->expect_reads_for(time); }

 private:
  std::string place(const std::string& path) const { return place_in(root_, path); }
  void hold_to_quotas(SpaceInfo& space) const;
  Status unlink_at(const std::string& path, int flags, const char* verb);

  const std::string root_;
  VolumeFeatures features_;
  PosixTree tree_;
  std::unique_ptr<IoEngine> engine_;
};

Result<FilePtr> PosixVolume::open(const std::string& path, OpenOptions options) {
  KVC_TRY(check_path(path));
  const bool writable = options.writable || options.create_exclusive;
  const int flags = (writable ? O_RDWR : O_RDONLY) | (options.create_exclusive ? O_CREAT | O_EXCL : 0);
  const char* verb = options.create_exclusive ? "create" : "open";
  bool direct = options.direct && features_.direct_io;
  auto fd = tree_.open_file(path, flags | (direct ? O_DIRECT : 0), verb);
  if (!fd && direct && fd.error().sys_errno == EINVAL) {  // features of a read-only volume were assumed, not probed
    direct = false;
    // Some file systems make the file before they refuse O_DIRECT; the file is then from this call.
    fd = tree_.open_file(path, flags & ~O_EXCL, verb);
  }
  if (!fd) return std::unexpected(std::move(fd).error());
  return std::make_shared<PosixFile>(std::move(*fd), place(path), direct);
}

Status PosixVolume::make_directory(const std::string& path) {
  KVC_TRY(check_path(path));
  KVC_ASSIGN(const PosixTree::Entry entry, tree_.entry(path));
  if (retry_interrupted([&] { return ::mkdirat(entry.directory_fd, entry.name.c_str(), kDirectoryMode); }) != 0)
    return fail_errno(errno, place(path) + ": make directory");
  return {};
}

// Tries to make directories without looking first: network file systems would cache that the name was absent.
Status PosixVolume::make_directories(const std::string& path) {
  KVC_TRY(check_path(path));
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const auto made = make_directory(path.substr(0, end));
    if (!made && made.error().code != Code::kExists) return made;
  }
  KVC_ASSIGN(const FileInfo made, info(path));
  if (!made.is_directory) return fail_errno(ENOTDIR, place(path) + ": make directory");
  return {};
}

Status PosixVolume::unlink_at(const std::string& path, int flags, const char* verb) {
  KVC_TRY(check_path(path));
  KVC_ASSIGN(const PosixTree::Entry entry, tree_.entry(path));
  if (retry_interrupted([&] { return ::unlinkat(entry.directory_fd, entry.name.c_str(), flags); }) != 0)
    return fail_errno(errno == EEXIST ? ENOTEMPTY : errno, place(path) + ": " + verb);
  return {};
}

Status PosixVolume::rename(const std::string& from, const std::string& to) {
  KVC_TRY(check_path(from));
  KVC_TRY(check_path(to));
  KVC_ASSIGN(const PosixTree::Entry source, tree_.entry(from));
  KVC_ASSIGN(const PosixTree::Entry target, tree_.entry(to));
  if (retry_interrupted([&] {
        return ::renameat(source.directory_fd, source.name.c_str(), target.directory_fd, target.name.c_str());
      }) != 0)
    return fail_errno(errno == EEXIST ? ENOTEMPTY : errno, place(from) + ": rename to " + place(to));
  return {};
}

// Uses link(), which is atomic also on a server. Without links, a rename that replaces nothing.
Status PosixVolume::publish(const std::string& from, const std::string& to) {
  KVC_TRY(check_path(from));
  KVC_TRY(check_path(to));
  KVC_ASSIGN(const PosixTree::Entry source, tree_.entry(from));
  KVC_ASSIGN(const PosixTree::Entry target, tree_.entry(to));
  const char* const from_name = source.name.c_str();
  const char* const to_name = target.name.c_str();
  int error = retry_interrupted([&] { return ::linkat(source.directory_fd, from_name, target.directory_fd, to_name, 0); }) == 0 ? 0 : errno;
  if (error == EEXIST) {
    // After a restart the server may have answered a repeated request, whose first try had succeeded.
    struct stat mine {}, there {};
    const bool same = ::fstatat(source.directory_fd, from_name, &mine, AT_SYMLINK_NOFOLLOW) == 0 &&
                      ::fstatat(target.directory_fd, to_name, &there, AT_SYMLINK_NOFOLLOW) == 0 && mine.st_dev == there.st_dev &&
                      mine.st_ino == there.st_ino;
    if (same) error = 0;
  }
  if (error == 0) {
    kill_point("volume-linked");
    auto removed = unlink_at(from, 0, "remove");
    return !removed && removed.error().code != Code::kNotFound ? removed : Status{};
  }
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK) {
    constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
    const long renamed = ::syscall(SYS_renameat2, source.directory_fd, from_name, target.directory_fd, to_name, kNoReplace);
    if (renamed == 0) return {};
    error = errno;
  }
  return fail_errno(error, place(from) + ": publish as " + place(to));
}

Result<std::vector<DirectoryEntry>> PosixVolume::list(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  return tree_.list(path);
}

Result<FileInfo> PosixVolume::info(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  KVC_ASSIGN(const struct stat attributes, tree_.info(path));
  return to_file_info(attributes);
}

Status PosixVolume::sync_directory(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  KVC_ASSIGN(const UniqueFd fd, tree_.open_directory(path));
  if (retry_interrupted([&] { return ::fsync(fd.get()); }) == 0) return {};
  // Some network and FUSE file systems have no fsync of directories: their names are durable when the call returns.
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return {};
  return fail_errno(errno, place(path) + ": sync directory");
}

Status PosixVolume::sync_everything() {
  if (retry_interrupted([&] { return ::syncfs(tree_.root_fd()); }) == 0) return {};
  return fail_errno(errno, root_ + ": sync the file system");
}

constexpr long kQuotactlFd = 443;  // since Linux 5.14, the same number everywhere

// Lowers `space` to the quotas of user and group; statvfs() only includes those of projects.
void PosixVolume::hold_to_quotas(SpaceInfo& space) const {
  if (::geteuid() == 0) return;  // no quota binds root, which may also use reserved blocks
  struct stat root {};
  if (::fstat(tree_.root_fd(), &root) != 0) return;
  const gid_t group = (root.st_mode & S_ISGID) != 0 ? root.st_gid : ::getegid();
  for (const auto& [type, id] : {std::pair<int, uint32_t>{USRQUOTA, ::geteuid()}, {GRPQUOTA, group}}) {
    struct dqblk quota {};
    if (::syscall(kQuotactlFd, tree_.root_fd(), QCMD(Q_GETQUOTA, type), id, &quota) != 0) continue;  // no quota is enabled
    // A soft limit becomes binding once its grace time is over.
    const auto now = static_cast<uint64_t>(::time(nullptr));
    const auto limit = [now](uint64_t hard, uint64_t soft, uint64_t grace_ends) {
      if (soft != 0 && grace_ends != 0 && grace_ends <= now) return hard == 0 ? soft : std::min(hard, soft);
      return hard;
    };
    const uint64_t bytes = limit(quota.dqb_bhardlimit, quota.dqb_bsoftlimit, quota.dqb_btime) * kKiB;
    const uint64_t files = limit(quota.dqb_ihardlimit, quota.dqb_isoftlimit, quota.dqb_itime);
    if (bytes != 0) {
      space.total_bytes = std::min(space.total_bytes, bytes);
      space.available_bytes = std::min(space.available_bytes, bytes - std::min<uint64_t>(bytes, quota.dqb_curspace));
    }
    if (files != 0) space.available_files = std::min(space.available_files, files - std::min<uint64_t>(files, quota.dqb_curinodes));
  }
}

Result<SpaceInfo> PosixVolume::space() {
  struct statvfs about {};
  if (retry_interrupted([&] { return ::fstatvfs(tree_.root_fd(), &about); }) != 0)
    return fail_errno(errno, root_ + ": statvfs");
  // Some file systems (ramfs) report no blocks: they have no limit of their own.
  constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 60;
  if (about.f_blocks == 0) return SpaceInfo{.total_bytes = kUnlimitedBytes, .available_bytes = kUnlimitedBytes};
  SpaceInfo space{.total_bytes = static_cast<uint64_t>(about.f_blocks) * about.f_frsize,
                  .available_bytes = static_cast<uint64_t>(about.f_bavail) * about.f_frsize};
  if (about.f_files > 0) space.available_files = about.f_favail;  // btrfs has no limit, and reports 0
  hold_to_quotas(space);
  return space;
}

Result<std::unique_ptr<VolumeLock>> PosixVolume::lock(const std::string& path) {
  KVC_TRY(check_path(path));
  auto opened = tree_.open_file(path, O_RDWR | O_CREAT, "open to lock");
  if (!opened && opened.error().sys_errno == EROFS) {
    Error error = std::move(opened).error();
    error.message += ": the volume must be writable, also for a mount with `ro` and for a check: remount its file system read-write, or check a copy";
    return std::unexpected(std::move(error));
  }
  KVC_ASSIGN(UniqueFd fd, std::move(opened));
  const int descriptor = fd.get();
  KVC_ASSIGN(auto lock, take_posix_lock(std::move(fd), place(path)));
  // The lock file, or its directory, may have been renamed or removed meanwhile: the next process would make and lock another file.
  struct stat held {};
  const auto there = tree_.info(path);
  if (::fstat(descriptor, &held) != 0 || !there || there->st_ino != held.st_ino || there->st_dev != held.st_dev)
    return fail(Code::kBusy, place(path) + ": removed by another process while it was locked here; try again");
  return lock;
}

// Enough for 7 GB/s at 1.2 ms. With more, completions come in bursts and demand reads wait longer (1 MiB reads of an
// NVMe device behind virtio: 8 in flight 1.5 ms each at 5 GiB/s, 32 in flight 7 to 14 ms at 4 to 5). A network file
// system needs what its links and servers can hold, which is not known here.
constexpr uint64_t kLocalBackgroundReadBytes = 8 * kMiB;

// Only warns: on a network file system the mode may mean little, and a group may be meant to share the volume.
void warn_of_others(int root_fd, const std::string& root) {
  struct stat attributes {};
  if (::fstat(root_fd, &attributes) != 0 || (attributes.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  log::warn("volume {}: others may write to it (mode {:04o}), and so change or remove what the mount holds; chmod 700 it", root,
            attributes.st_mode & 07777);
}

Result<std::unique_ptr<IoEngine>> make_engine(const std::string& root, const PosixVolumeOptions& options,
                                      VolumeFeatures& features) {
  features.io_uring = false;
  const uint64_t background_read_bytes = features.network ? kNoByteLimit : kLocalBackgroundReadBytes;
  if (options.io_uring) {
    auto engine = make_uring_engine(options.queue_depth, background_read_bytes);
    if (engine) {
      features.io_uring = true;
      return engine;
    }
    log::info("volume {}: no io_uring ({}); {} threads instead", root, engine.error().message, options.threads);
  }
  return make_posix_engine(options.threads, background_read_bytes);
}

}  // namespace

Result<std::shared_ptr<Volume>> open_posix_volume(const std::string& root, const PosixVolumeOptions& options) {
  if (options.queue_depth == 0 || options.queue_depth > 4096)
    return fail(Code::kInvalid, "volume " + root + ": queue depth " + std::to_string(options.queue_depth) +
                                    " is not between 1 and 4096");
  if (options.threads == 0 || options.threads > 1024)
    return fail(Code::kInvalid,
                "volume " + root + ": " + std::to_string(options.threads) + " I/O threads; give between 1 and 1024");
  UniqueFd fd(retry_interrupted([&] { return ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return fail_errno(errno, "volume " + root + ": open directory");
  warn_of_others(fd.get(), root);
  VolumeFeatures features = probe_features(fd.get(), root);
  KVC_ASSIGN(auto engine, make_engine(root, options, features));
  return std::make_shared<PosixVolume>(std::move(fd), root, std::move(features), std::move(engine), options.openat2);
}

}  // namespace kvcachefs
