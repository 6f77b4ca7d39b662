// The text of /proc/self/mountinfo and /proc/self/mounts.
#pragma once

#include <string>
#include <string_view>

namespace kvcachefs {

// A field as it was before the kernel wrote blanks, tabs, line ends, '#' and backslashes as three octal digits: "\040".
std::string unescape_mountinfo(std::string_view text);

}  // namespace kvcachefs
