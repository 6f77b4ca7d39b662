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

// Exit status of a daemon whose node was taken over, or removed, while the daemon was stopped or cut off from the volume.
inline constexpr int kExitNodeLost = 3;

// Opens the volume, mounts, serves until unmounted or told to stop, then writes out staged data. Unless in the foreground, returns in the
// caller once the mount answers (0), or prints the error to stderr (1); the daemon runs on in the background.
int run_mount(const MountRequest& request);

// The versions, and the features that this kernel and the libraries offer.
std::string version_text();
// The options with defaults and ranges, for --help.
std::string options_help();

}  // namespace kvcachefs
