// Parses the text of /proc/self/mountinfo and /proc/self/mounts.
#pragma once

#include <string>
#include <string_view>

namespace kvcachefs {

// Decodes a field: the kernel writes blanks, tabs, line ends, '#' and backslashes as three octal digits, e.g. "\040".
std::string unescape_mountinfo(std::string_view text);

}  // namespace kvcachefs
