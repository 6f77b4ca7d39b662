// Bytes that went to and came from storage for the sake of a directory.
#pragma once

#include <string>
#include <vector>

#include "tools/load/mount_status.h"

namespace kvcachefs {

struct VolumeIo {
  double read_bytes = 0;
  double written_bytes = 0;
};

// Running totals; differences of two calls are of interest. Of mounts of kvcachefs what their status says, added up, and
// what the kernel accounts to this process; of others the latter alone (writes when pages are made dirty, so not those
// undone before they reach the disk). On tmpfs and where the kernel does not account, zero.
VolumeIo read_volume_io(const std::vector<std::string>& directories);

// Of a mount with such a status. Reads that it passes through to a backing file are not in there: the kernel accounts
// them to the process that reads; what it reads ahead of those has a field of its own. What else is read ahead is among the
// bytes from the volume.
VolumeIo volume_io_of_mount(const StatusNumbers& numbers, const VolumeIo& process);

}  // namespace kvcachefs
