// Finds out what the file system below a directory can do.
#pragma once

#include <string>

#include "store/volume/volume.h"

namespace kvcachefs {

// `root_fd` is the open directory, `root` its path for messages. Fills everything except `io_uring`. Where a probe file
// cannot be made (read-only), direct I/O is assumed: opening falls back where it is refused.
VolumeFeatures probe_features(int root_fd, const std::string& root);

// Name and nature by the type in /proc/self/mountinfo ("ext4", "nfs4", "fuse.sshfs").
bool is_network_filesystem(const std::string& type);

}  // namespace kvcachefs
