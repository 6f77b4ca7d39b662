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

// Opens the file `name` in the epoch of `identity`, past the page cache. Null if a listing shows none: a client of a network file system
// that looks up a missing name remembers for long that it was not there.
Result<FilePtr> open_slots(Volume& volume, const FileIdentity& identity, const char* name);
Result<Head> read_head(File& file, const FileIdentity& identity, BlockBuffer& buffer);
Result<Acks> read_acks(File& file, const FileIdentity& identity, BlockBuffer& buffer);

// The last epoch of `own`'s node that the ACKS of any other node tell to have read; 0: none. Of each other node the newest ACKS that name this node
// count, among its last few epochs: a daemon that has just begun names nobody. A node that cannot be read is passed over.
Result<uint32_t> last_epoch_read_by_others(Volume& volume, const FileIdentity& own);

// Whether a daemon on another machine lives under this node's name, although its LOCK could be taken here: locks of NFS 3 mounted
// with "nolock" end at the machine. Call before this life makes its epoch. Returns the host, if the node's newest HEAD moves while `sleep` is
// called for `most_ns` in all. Returns at once if there is no HEAD, or if it was written on this machine since the machine started (there locks
// work), or if the volume is local and HEAD was not written for a while, by the volume's clock, which is also `clock`.
using Sleep = std::function<void(int64_t for_ns)>;
Result<std::optional<std::string>> lives_elsewhere(Volume& volume, const FileIdentity& own, const Clock& clock, const Sleep& sleep,
                                                   int64_t most_ns = 5'000'000'000);  // the HEAD of an idle node moves every two seconds, three at most
// kBusy, naming the host, if a daemon lives elsewhere. Blocks for five seconds where HEAD has to be watched.
Status check_lives_nowhere_else(Volume& volume, const FileIdentity& own, const Clock& clock);

}  // namespace kvcachefs
