// Probes what the file system below a directory can do.
#pragma once

#include <string>

#include "store/volume/volume.h"

namespace kvcachefs {

// `root_fd` is the open directory, `root` its path for messages. Fills everything except `io_uring`. If no probe file
// can be made (read-only), direct I/O is assumed: open() falls back if the file system refuses it.
VolumeFeatures probe_features(int root_fd, const std::string& root);

// Sets name and kind of the file system from its type in /proc/self/mountinfo ("ext4", "nfs4", "fuse.sshfs").
bool is_network_filesystem(const std::string& type);

}  // namespace kvcachefs
