// Reads HEAD and ACKS of any node, as slot_writer.h writes them. Blocks on the volume.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/journal/journal.h"
#include "store/peers/head_file.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// The file of this name in the epoch of `identity`, opened past the page cache; null if there is none, which is told from a listing: a client
// of a network file system that looked for a name remembers for long that it was not there.
Result<FilePtr> open_slots(Volume& volume, const FileIdentity& identity, const char* name);
Result<Head> read_head(File& file, const FileIdentity& identity, BlockBuffer& buffer);
Result<Acks> read_acks(File& file, const FileIdentity& identity, BlockBuffer& buffer);

// The last epoch of `own`'s node that another node says in its ACKS to have read of it; 0: nobody says so. Of each node the newest one counts that names this one, of its
// last few: a daemon that has just begun names nobody. One that cannot be read says nothing, and keeps nobody back.
Result<uint32_t> last_epoch_read_by_others(Volume& volume, const FileIdentity& own);

// Whether a daemon on another machine lives under this node's name, although its LOCK could be taken here: locks of NFS 3 that is mounted
// with "nolock" end at the machine. To be asked before this life makes its epoch. The host that runs it, if the newest HEAD of the node moves
// while `sleep` is called for `most_ns` in all; at once, without sleep, if there is no HEAD, or one of this start of this machine, on which
// locks do work, or where the volume is local and HEAD was not written for a while by its clock, which is that of `clock`.
using Sleep = std::function<void(int64_t for_ns)>;
Result<std::optional<std::string>> lives_elsewhere(Volume& volume, const FileIdentity& own, const Clock& clock, const Sleep& sleep,
                                                   int64_t most_ns = 3'000'000'000);
// kBusy, naming the host, if one does. Blocks for three seconds where that is to be seen.
Status check_lives_nowhere_else(Volume& volume, const FileIdentity& own, const Clock& clock);

}  // namespace kvcachefs
