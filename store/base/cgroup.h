// How much memory the control groups of a process let it have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcachefs {

struct CgroupLimit {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: none of them has a limit
  std::string file;             // that has the least
};

// `membership` is the text of /proc/PID/cgroup; `root` is where the hierarchies are mounted. Looks at the group and at all above
// it that can be seen, of both versions: memory.max and memory.high (v2), memory.limit_in_bytes (v1). A group that is not there
// under its name, as in a container that sees its own group as the root, leaves what the root says.
CgroupLimit cgroup_memory_limit(std::string_view membership, const std::string& root);
// Of this process.
CgroupLimit cgroup_memory_limit();

}  // namespace kvcachefs
