#include "tools/replay/volume_io.h"

#include <fstream>
#include <map>

#include "tools/common/mount_status.h"

namespace kvcachefs {

VolumeIo read_volume_io(const std::string& directory) {
  if (const auto mount = read_mount_status(directory)) {
    auto number = [&](const char* path) {
      const auto found = mount->numbers.find(path);
      return found == mount->numbers.end() ? 0 : found->second;
    };
    return {number("reads.bytes_from_volume") + number("prefetch.read_bytes"), number("writes.volume_bytes")};
  }
  std::ifstream io("/proc/self/io");
  std::map<std::string, double> fields;
  std::string name;
  double value = 0;
  while (io >> name >> value) fields[name] = value;
  return {fields["read_bytes:"], fields["write_bytes:"]};
}

}  // namespace kvcachefs
