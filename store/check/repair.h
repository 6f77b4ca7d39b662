// Repairs that the check makes in the journals.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/check/offline_node.h"
#include "store/index/index.h"

namespace kvcachefs {

// Puts the bodies of these objects into quarantine, by journal records in an epoch of its own: they read as absent from now
// on. Durable when it returns. `boot_id` is that of the newest journal before it, so that the next mount still verifies
// bodies that a restart of the host may have cost.
Status quarantine_bodies(OfflineNode& node, const Index& index, const std::vector<ObjectId>& objects,
                         const std::string& boot_id);

// Writes a checkpoint of the index, in an epoch of its own: no journal before that epoch is read any more. Durable when it returns. Removes the
// files that it covers, except on a volume with other nodes, which may not have read them: there the next checkpoint of a mount removes them.
Status write_checkpoint_of(OfflineNode& node, const Index& index, const std::string& boot_id);

}  // namespace kvcachefs
