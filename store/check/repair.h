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

// Writes a checkpoint of the index, in an epoch of its own: nothing before its position is read any more. Durable when it returns. What it covers is
// removed, but on a volume with other nodes, which may not have read it: the next checkpoint of a mount does that.
Status write_checkpoint_of(OfflineNode& node, const Index& index, const std::string& boot_id);

}  // namespace kvcachefs
