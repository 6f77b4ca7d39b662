// The contents of `.kvcachefs/status` at the root of a mounted kvcachefs. Other directories have none.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kvcachefs {

// Every number of the status by its dotted path, "reads.bytes_from_ram".
using StatusNumbers = std::map<std::string, double>;

struct MountStatus {
  std::string root;    // the mount point
  pid_t pid = 0;       // of the daemon; 0 if the status does not say
  std::string volume;  // the backing directory; empty if it cannot be told
  std::string volume_uuid;  // empty if the status does not say
  bool evicts = false;      // the mount evicts by itself: more than its capacity can be stored
  StatusNumbers numbers;
};

// The mount that contains `directory`; none if it is not a kvcachefs, or its status cannot be read.
std::optional<MountStatus> read_mount_status(const std::string& directory);

// The root of the file system that contains `directory`: the last ancestor with the same st_dev.
std::string file_system_root(const std::string& directory);

// The numbers of a JSON document; empty if it is not JSON. Fills pid, volume and volume_uuid if they are in it.
MountStatus parse_mount_status(std::string_view json);

// after - before for the counters worth reporting (reads, prefetch, probes, writes, evictions, errors, without levels such as ratios). Contains also
// counters that did not change, because a median is taken over all rounds.
StatusNumbers counter_changes(const StatusNumbers& before, const StatusNumbers& after);

}  // namespace kvcachefs
