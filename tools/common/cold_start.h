// The start of a cold phase.
#pragma once

#include <string>

#include "store/base/result.h"
#include "tools/common/report.h"

namespace kvcachefs {

// Drains what was written under `directory` and drops what is cached of it; what could not be dropped becomes a note of
// the report. With `keep_caches` it does neither and says so.
Status cold_start(const std::string& directory, bool keep_caches, Report& report);

}  // namespace kvcachefs
