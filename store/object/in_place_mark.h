// The mark of a file that changes where it is, kept with the attributes of the object so that it holds after a remount. Its name is
// in no namespace of xattrs that clients can name.
#pragma once

#include <algorithm>
#include <string_view>

#include "store/base/records.h"

namespace kvcachefs {

inline constexpr std::string_view kInPlaceMark = "kvcachefs.in_place";

inline bool has_in_place_mark(const Attributes& attributes) {
  return std::any_of(attributes.xattrs.begin(), attributes.xattrs.end(), [](const Xattr& xattr) { return xattr.name == kInPlaceMark; });
}

}  // namespace kvcachefs
