// The directory on this machine that holds the indexes of all peers, in one directory each. It is beside this node's own index, so it may lie in a
// volume: no link is followed, and anything that is not a directory is an error that names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

// Checks the directory of all peers. It need not exist.
Status check_peers_directory(const std::string& directory);
// The numbers of one peer's indexes, ascending. Makes the peer's directory, but not its parent.
Result<std::vector<uint64_t>> generations_in(const std::string& directory);

}  // namespace kvcachefs
