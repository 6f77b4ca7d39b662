#include "tools/replay/volume_io.h"

#include <fstream>
#include <map>
#include <set>

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

VolumeIo read_volume_io(const std::vector<std::string>& directories) {
  const VolumeIo process = read_process_io();
  StatusNumbers sum;
  std::set<std::string> seen;  // roots of mounts
  for (const std::string& directory : directories) {
    const auto mount = read_mount_status(directory);
    if (!mount || !seen.insert(mount->root).second) continue;
    for (const auto& [path, value] : mount->numbers) sum[path] += value;
  }
  return seen.empty() ? process : volume_io_of_mount(sum, process);
}

}  // namespace kvcachefs
