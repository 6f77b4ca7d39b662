// Private to the files that change names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/limits.h"
#include "store/base/types.h"

namespace kvcachefs {

inline constexpr uint64_t kNameRecordBytes = 64;  // about, beside the name

std::string entry_text(ObjectId parent, std::string_view name);  // for messages

}  // namespace kvcachefs
