// What a mount's read-ahead was worth.
#pragma once

#include <cstddef>

#include "tools/load/mount_status.h"
#include "tools/load/report.h"

namespace kvcachefs {

// Reports under `base`, from the changes of a mount's counters while clients read `read_bytes`. Accuracy: of the bytes
// read ahead, how many were used. Coverage: of the bytes read, how many were there already. A note says where that does
// not tell all, because reads were passed through.
void report_prefetch(Report& report, Metric base, size_t dir, const StatusNumbers& counters, double read_bytes);

}  // namespace kvcachefs
