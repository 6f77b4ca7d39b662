// The mark of a file that changes in place, or was not written as a chunk is. It is kept with the attributes of the object, so that it
// survives a remount. Its name is in no xattr namespace that clients can use; its value tells how the file changed.
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
  kPatched, // appended to, or changed in part, while it was filled, and not since
  kPartly,  // appended to, locked, or changed in part: no chunk
};

// Any other value, or an empty one (earlier versions wrote that), means kPartly.
inline constexpr std::string_view kWholeValue = "whole", kPatchedValue = "patched";

inline InPlace in_place_mark_of(const Attributes& attributes) {
  const auto mark =
      std::find_if(attributes.xattrs.begin(), attributes.xattrs.end(), [](const Xattr& xattr) { return xattr.name == kInPlaceMark; });
  if (mark == attributes.xattrs.end()) return InPlace::kNo;
  if (mark->value == kPatchedValue) return InPlace::kPatched;
  return mark->value == kWholeValue ? InPlace::kWhole : InPlace::kPartly;
}

}  // namespace kvcachefs
