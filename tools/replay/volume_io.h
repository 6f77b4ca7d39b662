// Bytes read from and written to storage because of a directory.
#pragma once

#include <string>
#include <vector>

#include "tools/load/mount_status.h"

namespace kvcachefs {

struct VolumeIo {
  double read_bytes = 0;
  double written_bytes = 0;
};

// Running totals; take the difference of two calls. For mounts of kvcachefs: the sum of the figures in their status and
// of what the kernel accounts to this process. For other directories: only the latter (writes are counted when pages are made dirty, without those
// undone before they reach the disk). Zero on tmpfs and if the kernel does not account.
VolumeIo read_volume_io(const std::vector<std::string>& directories);

// The figures of a mount with such a status. Reads that it passes through to a backing file are not in the status: the kernel accounts
// them to the process that reads; read-ahead for them has its own field. All other read-ahead is included in the
// bytes from the volume.
VolumeIo volume_io_of_mount(const StatusNumbers& numbers, const VolumeIo& process);

}  // namespace kvcachefs
