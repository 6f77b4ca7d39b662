// Drains writes and drops caches, between the phases of a measurement.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

// Sentences for the user about steps that failed.
using Notes = std::vector<std::string>;

// Waits until the data written under `directory` is on its volume: with the drain attribute of a kvcachefs, else with syncfs().
// If this user may not set the attribute, waits until the status says that nothing is staged, and returns a note.
Result<Notes> drain_writes(const std::string& directory);

// For the directories of several nodes: returns when all changes made in each are on its volume and visible to the others, as far as
// they are mounts of kvcachefs. Does nothing for one directory, and for directories of other kinds.
Result<Notes> exchange_changes(const std::vector<std::string>& directories);

// Makes the next reads under `directory` cold, as far as this process may. Drops the page cache of the machine (or file by
// file if that is not permitted), and the memory of the daemon if it is a kvcachefs that offers this. Failed steps are returned
// as notes; only a directory that cannot be listed is an error.
Result<Notes> drop_caches(const std::string& directory);

}  // namespace kvcachefs
