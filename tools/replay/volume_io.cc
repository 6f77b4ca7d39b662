#include "tools/replay/volume_io.h"

#include <fstream>
#include <map>

namespace kvcachefs {

namespace {

VolumeIo read_process_io() {
  std::ifstream io("/proc/self/io");
  std::map<std::string, double> fields;
  std::string name;
  double value = 0;
  while (io >> name >> value) fields[name] = value;
  return {fields["read_bytes:"], fields["write_bytes:"]};
}

}  // namespace

VolumeIo volume_io_of_mount(const StatusNumbers& numbers, const VolumeIo& process) {
  auto number = [&](const char* path) {
    const auto found = numbers.find(path);
    return found == numbers.end() ? 0 : found->second;
  };
  return {number("reads.bytes_from_volume") + number("prefetch.kernel_bytes") + process.read_bytes,
          number("writes.volume_bytes")};
}

VolumeIo read_volume_io(const std::string& directory) {
  const VolumeIo process = read_process_io();
  const auto mount = read_mount_status(directory);
  return mount ? volume_io_of_mount(mount->numbers, process) : process;
}

}  // namespace kvcachefs
