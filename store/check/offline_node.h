// One node of a volume that is not mounted, for the offline commands. The object holds the node's lock as long as it
// lives.
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
  FileIdentity identity;        // with the newest epoch; 0 if there is none
  bool has_others = false;      // the volume has parts of other nodes
  std::string index_directory;  // absolute
  bool index_is_named = false;  // the caller has named it, as that of the mount
  std::unique_ptr<VolumeLock> lock;
  std::string lacks_volume_file;  // why VOLUME is to be made anew; empty: it is good
};

struct OfflineRequest {
  std::string volume;
  std::string node;             // empty: this host's, or the only one there is
  std::string index_directory;  // empty: the default of a mount without the option `index`
  std::string purpose;          // "fsck": shown to others that find the lock held
};

// The nodes that a volume has, sorted; kNotFound if there is no such directory, or none in it. Blocks on the volume.
Result<std::vector<std::string>> nodes_of_volume(const std::string& volume);

// Opens without changing anything but the lock file. kBusy, naming the holder, while the node is mounted or checked;
// kNotFound if there is no such volume or node. Blocks on the volume.
// `goes_without`: if VOLUME is missing or damaged, goes by the id that the other files name.
Result<OfflineNode> open_offline_node(const OfflineRequest& request, bool goes_without = false);
// kBusy, naming the host, if a daemon on another machine runs the node although its lock could be taken here. Call it before changing anything.
// Blocks for three seconds if it has to watch the node for signs of life.
Status check_is_not_in_use(const OfflineNode& node);
// Removes the index. The next open of the store fills a new one from checkpoint and journals.
Status remove_index_of(const OfflineNode& node);

}  // namespace kvcachefs
