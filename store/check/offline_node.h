// One node of a volume that is not mounted, held by its lock for as long as this lives: what the offline commands work
// on.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/journal/volume_file.h"
#include "store/volume/volume.h"

namespace kvcachefs {

struct OfflineNode {
  std::shared_ptr<Volume> volume;
  VolumeHeader header;
  FileIdentity identity;        // epoch: the newest there is, 0 without any
  bool has_others = false;      // the volume has parts of other nodes
  std::string index_directory;  // absolute
  std::unique_ptr<VolumeLock> lock;
};

struct OfflineRequest {
  std::string volume;
  std::string node;             // empty: this host's, or the only one there is
  std::string index_directory;  // empty: where a mount without the option `index` has it
  std::string purpose;          // for others who find the lock held: "fsck"
};

// The nodes that a volume has, sorted; kNotFound if there is no such directory, or none in it. Blocks on the volume.
Result<std::vector<std::string>> nodes_of_volume(const std::string& volume);

// Opens without changing anything but the lock file. kBusy, naming the holder, while the node is mounted or checked;
// kNotFound if there is no such volume or node. Blocks on the volume.
Result<OfflineNode> open_offline_node(const OfflineRequest& request);
// kBusy, naming the host, if a daemon on another machine runs the node although its lock could be taken here. To be asked before something is changed.
// Blocks for three seconds where that is to be seen.
Status check_is_not_in_use(const OfflineNode& node);
// Whoever opens the store next fills a new one from checkpoint and journals.
Status remove_index_of(const OfflineNode& node);

}  // namespace kvcachefs
