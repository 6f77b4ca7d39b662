// Evicted nodes, remembered for a while.
#pragma once

#include "store/evict/recent_keys.h"
#include "store/evict/tree_policy.h"

namespace kvcachefs::evict {

using Ghosts = RecentKeys<Ghost>;

}  // namespace kvcachefs::evict
