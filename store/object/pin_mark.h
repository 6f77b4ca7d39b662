// The mark of a pinned file or directory. It is kept with the attributes of the object, so that it survives a remount. Its name is in no
// xattr namespace that clients can use.
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
