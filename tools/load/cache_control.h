// Drains writes and drops caches, between the phases of a measurement.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

// Sentences for the user about steps that failed.
using Notes = std::vector<std::string>;

// Waits until the data written under `directory` is on its volume: the drain attribute of a kvcachefs, else syncfs().
// Where this user may not set the attribute, until the status says that nothing is staged, with a note.
Result<Notes> drain_writes(const std::string& directory);

// Directories of several nodes: what was written and removed in each is on its volume and seen by the others when it
// returns, as far as they are mounts of kvcachefs. Does nothing for one directory, and to directories of other kinds.
Result<Notes> exchange_changes(const std::vector<std::string>& directories);

// Makes the next reads under `directory` cold, as far as this process may: the page cache of the machine, or file by
// file where that is not permitted, and the daemon's memory where it is a kvcachefs that offers it. Failed steps come back
// as notes; only a directory that cannot be walked is an error.
Result<Notes> drop_caches(const std::string& directory);

}  // namespace kvcachefs
