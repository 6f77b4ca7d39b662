// The mark of a file or directory that is pinned, kept with the attributes of the object so that it holds after a remount. Its name is
// in no namespace of xattrs that clients can name.
#pragma once

#include <algorithm>
#include <string_view>

#include "store/base/records.h"

namespace kvcachefs {

inline constexpr std::string_view kPinMark = "kvcachefs.pin";

inline bool has_pin(const Attributes& attributes) {
  return std::ranges::any_of(attributes.xattrs, [](const Xattr& xattr) { return xattr.name == kPinMark; });
}

}  // namespace kvcachefs
