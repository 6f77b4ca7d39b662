// A mount from start to end.
#pragma once

#include <string>
#include <vector>

namespace kvcachefs {

struct MountRequest {
  std::string volume;
  std::string mountpoint;
  std::vector<std::string> options;  // as given to -o, each a comma-separated list
  bool foreground = false;
};

// Of a daemon whose node was taken over, or removed, while it was stopped or cut off from the volume.
inline constexpr int kExitNodeLost = 3;

// Opens the volume, mounts, serves until unmounted or told to stop, drains. Not in the foreground: returns in the caller
// once the mount answers (0) or with the error said on stderr (1); the daemon goes on by itself.
int run_mount(const MountRequest& request);

// Versions, and the features that kernel and libraries offer here.
std::string version_text();
// The options with defaults and ranges, for --help.
std::string options_help();

}  // namespace kvcachefs
