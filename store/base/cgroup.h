// Finds the memory limit that the control groups of a process set.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcachefs {

struct CgroupLimit {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: no group has a limit
  std::string file;             // the file with the lowest limit
};

// `membership` is the text of /proc/PID/cgroup; `root` is where the hierarchies are mounted. Looks at the group and all visible
// ancestors, of both versions: memory.max and memory.high (v2), memory.limit_in_bytes (v1). If the group does not exist
// under its name, as in a container that sees its own group as the root, the limit of the root counts.
CgroupLimit cgroup_memory_limit(std::string_view membership, const std::string& root);
// The limit of this process.
CgroupLimit cgroup_memory_limit();

}  // namespace kvcachefs
