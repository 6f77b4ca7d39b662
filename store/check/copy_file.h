// Copies a file with its holes: one that was made huge by a single byte takes no room and no time.
#pragma once

#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// `to` is made, or replaced. Blocks; does not follow a link.
Status copy_file_sparse(const std::string& from, const std::string& to);

}  // namespace kvcachefs
