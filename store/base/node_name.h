// Names of nodes: what a host calls its part of a volume. One rule for mounts, fsck and the records of other nodes.
#pragma once

#include <string>
#include <string_view>

namespace kvcachefs {

inline constexpr size_t kMaxNodeNameBytes = 63;

// 1 to 63 letters, digits, '-', '_', '.', the first one no '.': a name of a directory on every file system.
bool is_node_name(std::string_view name);
// The name that the host tells of itself, made such a name.
std::string node_name_of_host();
// The same of any text.
std::string to_node_name(std::string_view host);

}  // namespace kvcachefs
