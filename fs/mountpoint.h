// Checks of the mountpoint and the volume, and of existing mounts there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

inline constexpr std::string_view kMountType = "fuse.kvcachefs";

struct PreparedMountpoint {
  std::string path;         // absolute, without symbolic links
  std::string dead_device;  // MAJOR:MINOR of a kvcachefs mount there whose daemon has died; else empty
};
// Checks that a directory can be mounted on. A dead mount stays in place until the new mount can replace it (new_mount.h), because clients
// go on and must not write into the directory below. Below a dead mount the directory may have entries; else it may only if `nonempty`. A dead mount
// of another file system is refused.
Result<PreparedMountpoint> prepare_mountpoint(const std::string& path, bool nonempty);
// Whether the mount there reports that its daemon has died. Sends a request to the daemon if it lives.
bool is_dead(const std::string& mountpoint);
bool means_dead(int problem);  // `problem` is an errno
UniqueFd open_bare_directory(const std::string& path);
// Logs how many entries of the directory the mount hides.
void warn_of_hidden(UniqueFd directory, const std::string& mountpoint);
// Returns the absolute path of the volume. Makes the directory (0700) if only its last part is missing and it
// `may_create` it.
Result<std::string> prepare_volume(const std::string& path, bool may_create);
// Whether the volume lies on a stacked file system: overlayfs, as in a container, FUSE or eCryptfs.
bool is_stacked(const std::string& volume);
// The mount at a path; if there are several, the topmost.
struct MountedThere {
  std::string type;
  std::string source;
  std::string device;   // MAJOR:MINOR
  std::string options;  // options of the mount, then of the file system
};
std::optional<MountedThere> mounted_on(const std::string& path);
// The same, but only if it is the mount of this volume. A volume has one mount at a time.
std::optional<MountedThere> mount_of(const std::string& volume, const std::string& mountpoint);
// Detaches the mount from the tree; open files stay usable until the daemon ends. False if that failed.
bool lazily_unmount(const std::string& path);
// Refuses a mountpoint inside the volume, or the volume inside the mountpoint.
Status check_apart(const std::string& volume, const std::string& mountpoint);
// Refuses a path, given by an option, that lies inside `directory`. An empty path is accepted. `what` names the directory in the message.
Status check_outside(const char* option, const std::string& path, const char* what, const std::string& directory);

}  // namespace kvcachefs
