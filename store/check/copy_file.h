// Copies a file with its holes: one that was made huge by a single byte takes no room and no time.
#pragma once

#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// `to` is made; kExists if it is there. `from` may lie in a volume, and is a plain file in a plain directory. Blocks.
Status copy_file_sparse(const std::string& from, const std::string& to);

}  // namespace kvcachefs
