// Names of nodes: the name of a host's part of a volume. Mounts, fsck and the records of other nodes use one rule.
#pragma once

#include <string>
#include <string_view>

namespace kvcachefs {

inline constexpr size_t kMaxNodeNameBytes = 63;

// 1 to 63 letters, digits, '-', '_', '.', not beginning with '.': a valid directory name on every file system.
bool is_node_name(std::string_view name);
// The host's own name, converted to a valid node name.
std::string node_name_of_host();
// Converts any text in the same way.
std::string to_node_name(std::string_view host);

}  // namespace kvcachefs
