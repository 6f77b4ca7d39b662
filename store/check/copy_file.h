// Copies a file with its holes: a huge file with a single byte at its end takes no room and no time.
#pragma once

#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// Creates `to`; kExists if it exists. `from` may lie in a volume; it must be a plain file in a plain directory. Blocks.
Status copy_file_sparse(const std::string& from, const std::string& to);

}  // namespace kvcachefs
