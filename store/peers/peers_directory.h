// The directory on this machine of the indexes of all peers, one directory for each in it. It is beside the own index, so it may lie in a
// volume: links are not followed, and what is no directory is an error, which names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

// That of all. It need not be there.
Status check_peers_directory(const std::string& directory);
// The indexes of one peer by their numbers, ascending. Makes the directory of the peer, not the one it is in.
Result<std::vector<uint64_t>> generations_in(const std::string& directory);

}  // namespace kvcachefs
