// Private to the files that change names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "store/base/limits.h"
#include "store/base/types.h"

namespace kvcachefs {

std::string entry_text(ObjectId parent, std::string_view name);  // for messages

}  // namespace kvcachefs
