// The mounts of this machine, from /proc/self/mountinfo.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

struct MountEntry {
  std::string mountpoint;
  std::string type;
  std::string source;

  bool is_kvcachefs() const { return type == "fuse.kvcachefs"; }
};

// In the order of mounting: if two have the same mountpoint, the later is on top.
std::vector<MountEntry> mount_table();

// `path` without symbolic links and dots. The last part is left as it is if it cannot be resolved: it may be the mountpoint of
// a daemon that died.
Result<std::string> resolve_path(const std::string& path);

// The kvcachefs that contains `path` (absolute, resolved); kNotFound if `path` lies in another file system.
Result<MountEntry> enclosing_mount(const std::string& path);

// The kvcachefs mounted on exactly `path`.
Result<MountEntry> mount_at(const std::string& path);

// The only kvcachefs mounted on this machine. kNotFound if there is none; kInvalid, naming them, if there are
// several.
Result<MountEntry> only_mount();

// Returns the whole content of a file of `.kvcachefs/` at the root of a mount.
Result<std::string> read_control_file(const std::string& mountpoint, const std::string& name);

}  // namespace kvcachefs
