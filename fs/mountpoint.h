// Checks of mountpoint and volume, and what is mounted there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

inline constexpr std::string_view kMountType = "fuse.kvcachefs";

struct PreparedMountpoint {
  std::string path;         // absolute, without links
  std::string dead_device;  // MAJOR:MINOR of a mount of ours that is there and whose daemon has died; else empty
};
// A directory that can be mounted on. A dead mount stays where it is until the new one can take its place (new_mount.h): clients go on, and
// must not write into the directory below. That may have entries then, which were hidden before; without a dead mount only if `nonempty`.
Result<PreparedMountpoint> prepare_mountpoint(const std::string& path, bool nonempty);
// Whether the mount there answers that its daemon has died. Asks the daemon, if there is one.
bool is_dead(const std::string& mountpoint);
bool means_dead(int problem);  // an errno
UniqueFd open_bare_directory(const std::string& path);
// Logs how many entries the directory has that a mount hides.
void warn_of_hidden(UniqueFd directory, const std::string& mountpoint);
// Absolute path of the volume; the directory itself is made (0700) if only it is missing.
Result<std::string> prepare_volume(const std::string& path);
// Whether it lies on a file system that is stacked on others: overlayfs, as in a container, FUSE or eCryptfs.
bool is_stacked(const std::string& volume);
// The mount at a path; of several the topmost.
struct MountedThere {
  std::string type;
  std::string source;
  std::string device;   // MAJOR:MINOR
  std::string options;  // of the mount, then of the file system
};
std::optional<MountedThere> mounted_on(const std::string& path);
// The same if it is the mount of this volume. A volume has one mount at a time.
std::optional<MountedThere> mount_of(const std::string& volume, const std::string& mountpoint);
// Detaches the mount from the tree; open files stay usable until the daemon ends. False if that failed.
bool lazily_unmount(const std::string& path);
// Refuses a mountpoint inside the volume, or the volume inside the mountpoint.
Status check_apart(const std::string& volume, const std::string& mountpoint);
// That the path given by an option, if one is, lies outside of a directory (`what`, for the message).
Status check_outside(const char* option, const std::string& path, const char* what, const std::string& directory);

}  // namespace kvcachefs
