// What the check can put right.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/check/offline_node.h"
#include "store/index/index.h"

namespace kvcachefs {

// Journals, in an epoch of its own, that the bodies of these objects are in quarantine: they read as absent from now
// on. Durable when it returns. `boot_id` is that of the newest journal before it, so that the next mount still verifies
// what a restart of the host may have cost.
Status quarantine_bodies(OfflineNode& node, const Index& index, const std::vector<ObjectId>& objects,
                         const std::string& boot_id);

}  // namespace kvcachefs
