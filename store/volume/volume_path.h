// The grammar of paths inside a volume, the same for every kind of volume.
#pragma once

#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

// "" and "." are the root; only list, info and sync_directory accept it.
bool is_root_path(std::string_view path);

// Accepts names separated by single slashes: no leading or trailing slash, no ".", no "..", no NUL, names of at most
// 255 bytes. A path that passes means the same file on every kind of volume and cannot leave the volume.
Status check_path(std::string_view path);

// "a/b/c" -> "a/b"; "a" -> "".
std::string_view parent_path(std::string_view path);

// The path for messages: `path` below the volume's root.
std::string place_in(const std::string& root, const std::string& path);

}  // namespace kvcachefs
