#include "tools/replay/prefetch_report.h"

namespace kvcachefs {
namespace {

double counter(const StatusNumbers& counters, const char* path) {
  const auto found = counters.find(path);
  return found == counters.end() ? 0 : found->second;
}

}  // namespace

void report_prefetch(Report& report, Metric base, size_t dir, const StatusNumbers& counters, double read_bytes) {
  if (counter(counters, "reads.passthrough_opens") > 0) {
    report.note(
        "chunks were passed through to their backing files (status.reads.passthrough_opens): the daemon does not see "
        "these reads, so prefetch_* and status.reads.* do not cover them");
  }
  const double ahead = counter(counters, "prefetch.read_bytes");
  if (ahead <= 0) return;
  auto add = [&](const char* measure, double of, double whole) {
    base.measure = measure;
    if (whole > 0) report.add(base, dir, 100 * of / whole);
  };
  add("prefetch_accuracy", counter(counters, "prefetch.used_bytes"), ahead);
  add("prefetch_waste", counter(counters, "prefetch.wasted_bytes"), ahead);
  add("prefetch_coverage", counter(counters, "prefetch.used_bytes"), read_bytes);
}

}  // namespace kvcachefs
