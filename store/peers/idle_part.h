// Space that a node's part holds for its daemon alone, and for nothing once the daemon is gone: RESERVE, room for the next records of its journal, and
// on a local volume the indexes it has made of its peers, which the next life makes anew. Other nodes give that space back, so that many nodes of
// changing names do not fill a volume with it. One RESERVE always stays on a volume, for whichever node begins where others have filled the
// file system.
//
// These functions block on the volume.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

std::string reserve_path(std::string_view node);
// Whether another node keeps a RESERVE of at least `bytes`.
bool others_keep_reserve(Volume& volume, const FileIdentity& own, uint64_t bytes);

// Whether the part holds such space. Takes two lookups; false also where they fail.
bool holds_for_nothing(Volume& volume, const std::string& node);
// Gives that space back under the node's LOCK, writing `holder` into it; returns how many bytes came back. kBusy: LOCK is held.
Result<uint64_t> give_back_idle(Volume& volume, const std::string& node, std::string_view holder);
// Gives back the RESERVEs of other nodes that do not run, until `bytes` came back. False: nothing did.
bool give_back_reserves_of_others(Volume& volume, const FileIdentity& own, uint64_t bytes, std::string_view holder);

}  // namespace kvcachefs
