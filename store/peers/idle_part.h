// What the part of a node holds for its daemon alone, and so for nothing where that is gone: RESERVE, room for the next records of its journal, and
// on a local volume the indexes that it has made of its peers, which the next life makes anew. Other nodes give that back, so that many nodes of
// changing names do not fill a volume with it. But one RESERVE stays on a volume, for whichever node begins where others have filled the
// file system.
//
// Block on the volume.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

std::string reserve_path(std::string_view node);
// Whether one of the other nodes keeps a RESERVE of as many bytes.
bool others_keep_reserve(Volume& volume, const FileIdentity& own, uint64_t bytes);

// Two looks; false as well where they fail.
bool holds_for_nothing(Volume& volume, const std::string& node);
// Under its LOCK, of which `holder` becomes the content; kBusy: somebody has that. How many bytes came back.
Result<uint64_t> give_back_idle(Volume& volume, const std::string& node, std::string_view holder);
// The same with the RESERVEs of other nodes that do not run, until so many bytes came back. False: nothing did.
bool give_back_reserves_of_others(Volume& volume, const FileIdentity& own, uint64_t bytes, std::string_view holder);

}  // namespace kvcachefs
