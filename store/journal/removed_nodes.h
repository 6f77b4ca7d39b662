// Nodes that were taken out of a volume. nodes/<node> is renamed to removed/<node>/<its last epoch>, in one step, and emptied there.
// That directory stays, for it tells which epochs are used up: a later node of the same name begins behind them. So ids and positions of the
// old node that other nodes remember never match the new one by chance.
//
// All calls block on the volume.
#pragma once

#include <cstdint>
#include <string_view>

#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// The last epoch of the removed nodes of this name; 0: there was none. Uses listings: a client of a network file system that once
// missed a name remembers for a long time that it does not exist.
Result<uint32_t> last_removed_epoch(Volume& volume, std::string_view node);

// Takes the node out. The caller holds its LOCK, and `identity` tells its last epoch. After a kill or a power loss the node is either as it
// was or gone.
Status set_node_aside(Volume& volume, const FileIdentity& identity);

struct Cleared {
  uint64_t bytes = 0;       // of the removed files
  uint64_t files = 0;
  uint64_t left = 0;        // files that another process on this machine has open: a network file system keeps them under another name until they are closed
};
// Removes what is left of removed nodes of this name, except the directory that tells the last epoch. Needs no lock; a second
// call continues the work of an interrupted one. `remove` false: only counts.
Result<Cleared> clear_set_aside(Volume& volume, std::string_view node, bool remove = true);

// Counts all files below a directory of the volume, and the bytes that they take.
Result<Cleared> measure_tree(Volume& volume, const std::string& directory);
// Removes a directory of the volume with its content. No error if it does not exist.
Result<Cleared> remove_tree(Volume& volume, const std::string& directory);

}  // namespace kvcachefs
