// The mark of a file that changes where it is, kept with the attributes of the object so that it holds after a remount. Its name is
// in no namespace of xattrs that clients can name; its value tells how the file changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "store/base/records.h"

namespace kvcachefs {

inline constexpr std::string_view kInPlaceMark = "kvcachefs.in_place";

enum class InPlace : uint8_t {
  kNo,
  kWhole,   // rewritten as a whole, more than once: a chunk that was stored again
  kPartly,  // appended to, locked, or changed in part: no chunk
};

inline constexpr std::string_view kWholeValue = "whole";  // any other value, or none, as of earlier versions: partly

inline InPlace in_place_mark_of(const Attributes& attributes) {
  const auto mark =
      std::find_if(attributes.xattrs.begin(), attributes.xattrs.end(), [](const Xattr& xattr) { return xattr.name == kInPlaceMark; });
  if (mark == attributes.xattrs.end()) return InPlace::kNo;
  return mark->value == kWholeValue ? InPlace::kWhole : InPlace::kPartly;
}

}  // namespace kvcachefs
