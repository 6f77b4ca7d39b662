// Bytes that went to and came from storage for the sake of a directory.
#pragma once

#include <string>

namespace kvcachefs {

struct VolumeIo {
  double read_bytes = 0;
  double written_bytes = 0;
};

// Running totals; differences of two calls are of interest. Of a kvcachefs what its status says, else what the kernel
// accounts to this process (writes when pages are made dirty, so not those undone before they reach the disk). On
// tmpfs and where the kernel does not account, zero.
VolumeIo read_volume_io(const std::string& directory);

}  // namespace kvcachefs
