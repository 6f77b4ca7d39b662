// Paths of objects, for messages.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "store/base/result.h"
#include "store/index/index.h"

namespace kvcachefs {

// Returns one path, from the root of the mount, for each object that has one. Scans all names once for each level of
// directories above the objects: meant for a few objects, not for all.
Result<std::unordered_map<ObjectId, std::string>> object_paths(const Index& index,
                                                               const std::unordered_set<ObjectId>& objects);

// The name with unprintable characters and backslashes as \xNN.
std::string printable(std::string_view name);

}  // namespace kvcachefs
