// Paths of objects, for messages.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "store/base/result.h"
#include "store/index/index.h"

namespace kvcachefs {

// One path of each object that has one, from the root of the mount on. Scans all names once for each level of
// directories above them: for a few objects, not for all.
Result<std::unordered_map<ObjectId, std::string>> object_paths(const Index& index,
                                                               const std::unordered_set<ObjectId>& objects);

// With what does not print, and backslashes, as \xNN.
std::string printable(std::string_view name);

}  // namespace kvcachefs
