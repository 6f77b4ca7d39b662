// The start of a cold phase and the end of a write, with their notes in the report.
#pragma once

#include <string>

#include "store/base/result.h"
#include "tools/load/report.h"

namespace kvcachefs {

// Waits until the data written under `directory` is on its volume; a step that fails becomes a note.
Status drain_writes(const std::string& directory, Report& report);

// Drains the data written under `directory` and drops its caches; a cache that could not be dropped becomes a note of
// the report. With `keep_caches` it does neither and says so.
Status cold_start(const std::string& directory, bool keep_caches, Report& report);

}  // namespace kvcachefs
