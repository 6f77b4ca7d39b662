// Nodes that were taken out of a volume. What was nodes/<node> is renamed to removed/<node>/<its last epoch>, in one step, and emptied there;
// that directory stays, for it tells which epochs are taken: a node of that name that comes later begins behind them. What others remember of
// the one before (ids, positions) never fits it by chance.
//
// Block on the volume.
#pragma once

#include <cstdint>
#include <string_view>

#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// The last epoch of the nodes that had this name and were taken out; 0: there was none. Told from listings: a client of a network file
// system that looked for a name remembers for long that it was not there.
Result<uint32_t> last_removed_epoch(Volume& volume, std::string_view node);

// Takes the node out. The caller holds its LOCK, and `identity` tells its last epoch. Of a kill before, or of a power loss, it is left as it
// was or is gone.
Status set_node_aside(Volume& volume, const FileIdentity& identity);

struct Cleared {
  uint64_t bytes = 0;       // of the files that went
  uint64_t files = 0;
  uint64_t left = 0;        // that another process on this machine has open: a network file system keeps them under another name until then
};
// Removes what was set aside of nodes of this name, but for the directory that tells the last epoch. Nobody's lock is needed; whoever does it
// a second time goes on. `remove` false: only counts.
Result<Cleared> clear_set_aside(Volume& volume, std::string_view node, bool remove = true);

// Of all files below a directory of the volume: the bytes that they take.
Result<Cleared> measure_tree(Volume& volume, const std::string& directory);
// Removes a directory of the volume with all that is in it. Fine if it is not there.
Result<Cleared> remove_tree(Volume& volume, const std::string& directory);

}  // namespace kvcachefs
