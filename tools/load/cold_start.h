// Starts a cold phase, and waits for the end of writes; notes go into the report.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/report.h"

namespace kvcachefs {

// Waits until the data written under the directories is on their volumes; a step that fails becomes a note.
Status drain_writes(const std::vector<std::string>& directories, Report& report);

// Drains the data written under the directories and drops their caches; a cache that could not be dropped becomes a note
// of the report. With `keep_caches` it does neither and adds a note. Several directories are those of nodes: each has then seen
// what the others wrote before.
Status cold_start(const std::vector<std::string>& directories, bool keep_caches, Report& report);
// The same for one directory.
Status cold_start(const std::string& directory, bool keep_caches, Report& report);

}  // namespace kvcachefs
