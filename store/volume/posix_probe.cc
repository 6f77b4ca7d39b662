#include "store/volume/posix_probe.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/mountinfo.h"
#include "store/base/node_name.h"
#include "store/base/unique_fd.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {

constexpr size_t kProbeBytes = 64 * kKiB;  // more than one block of any file system in use

struct FreeBlock {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedBlock = std::unique_ptr<std::byte, FreeBlock>;

AlignedBlock make_block(std::byte fill) {
  AlignedBlock block(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kProbeBytes)));
  if (block) std::memset(block.get(), static_cast<int>(fill), kProbeBytes);
  return block;
}

struct MountedAs {
  std::string type, options;  // of the file system; empty: unknown
};

// Looks up the mount with this id: "36 35 98:0 /root /mount options [optional fields] - type source options".
MountedAs find_in_mountinfo(uint64_t mount_id) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string line;
  while (std::getline(mounts, line)) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos || std::strtoull(line.c_str(), nullptr, 10) != mount_id) continue;
    std::istringstream rest(line.substr(separator + 3));
    std::string type, source, options;
    rest >> type >> source >> options;
    return {unescape_mountinfo(type), options};
  }
  return {};
}

// Whether the NFS mount options say that locks are not sent to the server.
bool has_local_locks(const MountedAs& mounted) {
  if (!mounted.type.starts_with("nfs")) return false;
  const std::string options = "," + mounted.options + ",";
  return options.contains(",nolock,") || options.contains(",local_lock=all,") || options.contains(",local_lock=posix,");
}

// For kernels without mount ids in statx, or without /proc.
std::string type_from_statfs(int fd) {
  struct statfs about {};
  if (::fstatfs(fd, &about) != 0) return "unknown";
  constexpr std::array<std::pair<uint32_t, const char*>, 12> kMagics = {{{0xEF53, "ext4"},
                                                                         {0x58465342, "xfs"},
                                                                         {0x9123683E, "btrfs"},
                                                                         {0x01021994, "tmpfs"},
                                                                         {0x6969, "nfs"},
                                                                         {0x65735546, "fuse"},
                                                                         {0xF2F52010, "f2fs"},
                                                                         {0x2FC12FC1, "zfs"},
                                                                         {0x00C36400, "ceph"},
                                                                         {0x0BD00BD0, "lustre"},
                                                                         {0xFF534D42, "cifs"},
                                                                         {0x794C7630, "overlay"}}};
  for (const auto& [magic, name] : kMagics)
    if (static_cast<uint32_t>(about.f_type) == magic) return name;
  return "unknown";
}

MountedAs mounted_as(int fd) {
  struct statx about {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &about) == 0 && (about.stx_mask & STATX_MNT_ID) != 0) {
    MountedAs mounted = find_in_mountinfo(about.stx_mnt_id);
    if (!mounted.type.empty()) return mounted;
  }
  return {type_from_statfs(fd), {}};
}

constexpr std::string_view kProbePrefix = ".kvcachefs-probe-";

// Unique, because others probe the same directory, in containers with the same process ids and on other hosts.
std::string probe_name() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) number = static_cast<uint64_t>(::getpid());
  return fmt::format("{}{}-{:016x}", kProbePrefix, node_name_of_host(), number);
}

UniqueFd create_probe(int root_fd, const std::string& name) {
  return UniqueFd(retry_interrupted([&] { return ::openat(root_fd, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); }));
}

// Removes probe files of dead processes: an hour older than this one, by the clock of the file system.
void remove_old_probes(int root_fd, int probe_fd) {
  constexpr time_t kOldSeconds = 3600;
  struct stat mine {};
  if (::fstat(probe_fd, &mine) != 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> root(::fdopendir(::openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), ::closedir);
  while (const dirent* entry = root ? ::readdir(root.get()) : nullptr) {
    struct stat other {};
    if (!std::string_view(entry->d_name).starts_with(kProbePrefix)) continue;
    if (::fstatat(root_fd, entry->d_name, &other, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(other.st_mode)) continue;
    if (other.st_mtim.tv_sec < mine.st_mtim.tv_sec - kOldSeconds) ::unlinkat(root_fd, entry->d_name, 0);
  }
}

enum class Written : uint8_t { kYes, kNo, kNoRoom };

Written write_block(int fd, const std::byte* block) {
  const ssize_t written = retry_interrupted([&] { return ::pwrite(fd, block, kProbeBytes, 0); });
  if (written == static_cast<ssize_t>(kProbeBytes)) return Written::kYes;
  return written >= 0 || errno == ENOSPC || errno == EDQUOT ? Written::kNoRoom : Written::kNo;
}

bool is_same_file(int a, int b) {
  struct stat one {}, other {};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

bool probe_file_ids(int root_fd, int probe_fd, const std::string& name) {
  struct stat open {}, named {};
  return ::fstat(probe_fd, &open) == 0 && ::fstatat(root_fd, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

bool probe_direct(int root_fd, int probe_fd, const std::string& name) {
  const UniqueFd fd(
      retry_interrupted([&] { return ::openat(root_fd, name.c_str(), O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC); }));
  if (fd.valid() && !is_same_file(fd.get(), probe_fd)) return false;  // another file took its place
  const AlignedBlock out = make_block(std::byte{0x5a});
  const AlignedBlock in = make_block(std::byte{0});
  if (!fd.valid() || !out || !in) return false;
  const Written written = write_block(fd.get(), out.get());
  if (written != Written::kYes) return written == Written::kNoRoom;  // at least the open succeeded
  const ssize_t got = retry_interrupted([&] { return ::pread(fd.get(), in.get(), kProbeBytes, 0); });
  return got == static_cast<ssize_t>(kProbeBytes) && std::memcmp(in.get(), out.get(), kProbeBytes) == 0;
}

blkcnt_t blocks_of(int fd) {
  struct stat attributes {};
  ::fsync(fd);  // else delayed allocation and attribute caches would hide the real number
  return ::fstat(fd, &attributes) == 0 ? attributes.st_blocks : 0;
}

bool probe_punch(int fd) {
  const AlignedBlock block = make_block(std::byte{0x5a});
  const Written written = block ? write_block(fd, block.get()) : Written::kNo;
  if (written == Written::kNo) return false;
  const blkcnt_t before = blocks_of(fd);
  const int result = retry_interrupted(
      [&] { return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(kProbeBytes)); });
  // On a full file system there is nothing to punch, so fallocate's result is believed: a mount without punching would free nothing.
  return result == 0 && (written == Written::kNoRoom || blocks_of(fd) < before);
}

}  // namespace

bool is_network_filesystem(const std::string& type) {
  // Every FUSE file system counts: a call there is at least a round trip to another process.
  if (type.starts_with("fuse")) return true;
  constexpr std::array<std::string_view, 18> kNetwork = {"nfs",    "nfs4",  "cifs",      "smb3",   "smbfs",    "ceph",
                                                         "lustre", "9p",    "afs",       "gpfs",   "ocfs2",    "gfs2",
                                                         "beegfs", "pvfs2", "glusterfs", "wekafs", "virtiofs", "panfs"};
  return std::ranges::find(kNetwork, type) != kNetwork.end();
}

namespace {
// File systems whose st_blocks includes space promised by delayed allocation.
bool tells_blocks_at_once(const std::string& type) {
  constexpr std::array<std::string_view, 7> kAtOnce = {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs"};
  return std::ranges::find(kAtOnce, type) != kAtOnce.end();
}
}  // namespace

VolumeFeatures probe_features(int root_fd, const std::string& root) {
  VolumeFeatures features;
  MountedAs mounted = mounted_as(root_fd);
  features.locks_are_local = has_local_locks(mounted);
  features.filesystem = std::move(mounted.type);
  features.network = is_network_filesystem(features.filesystem);
  features.blocks_lag = !tells_blocks_at_once(features.filesystem);
  features.whole_writes = features.filesystem == "btrfs";
  const std::string name = probe_name();
  UniqueFd probe = create_probe(root_fd, name);
  if (!probe.valid()) {
    log::debug("volume {}: no probe file ({}); direct I/O is assumed, hole punching is not", root,
               std::strerror(errno));
    features.direct_io = true;
    features.file_ids = !features.network;
    return features;
  }
  remove_old_probes(root_fd, probe.get());
  features.file_ids = probe_file_ids(root_fd, probe.get(), name);
  features.punch_hole = probe_punch(probe.get());
  features.direct_io = probe_direct(root_fd, probe.get(), name);
  probe.reset();  // before the unlink: NFS renames open files instead of removing them
  if (::unlinkat(root_fd, name.c_str(), 0) != 0 && errno != ENOENT)
    log::warn("volume {}: {} could not be removed: {}; remove it by hand", root, name, std::strerror(errno));
  return features;
}

}  // namespace kvcachefs
