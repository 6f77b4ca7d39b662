// Reports how useful a mount's read-ahead was.
#pragma once

#include <cstddef>

#include "tools/load/mount_status.h"
#include "tools/load/report.h"

namespace kvcachefs {

// Reports under `base`, from the changes of a mount's counters while clients read `read_bytes`. Accuracy: the part of the bytes
// read ahead that was used. Coverage: the part of the bytes read that was there already. A note tells if that is
// incomplete, because reads were passed through.
void report_prefetch(Report& report, Metric base, size_t dir, const StatusNumbers& counters, double read_bytes);

}  // namespace kvcachefs
