#include "tools/load/outcome_report.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "store/base/units.h"
#include "tools/load/statistics.h"

namespace kvcachefs {

void report_outcomes(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                     std::span<const RequestOutcome> outcomes, uint64_t bytes_per_chunk) {
  auto add = [&](const char* measure, const char* unit, double value, Limit limit = Limit::kNone) {
    report.add({workload, scenario, measure, unit, limit}, dir, value);
  };
  std::vector<double> ttft_ms, restore_ms;
  RequestOutcome sum;
  for (const RequestOutcome& one : outcomes) {
    ttft_ms.push_back(one.ttft_s() * 1e3);
    if (one.hit_chunks > 0) restore_ms.push_back((one.probe_s + one.read_s) * 1e3);
    sum.read_s += one.read_s;
    sum.store_s += one.store_s;
    sum.input_tokens += one.input_tokens;
    sum.hit_tokens += one.hit_tokens;
    sum.hit_chunks += one.hit_chunks;
    sum.lost_chunks += one.lost_chunks;
    sum.unfound_chunks += one.unfound_chunks;
    sum.unfound_age_s = std::max(sum.unfound_age_s, one.unfound_age_s);
    sum.stored_chunks += one.stored_chunks;
  }
  add("ttft_p50", "ms", percentile(ttft_ms, 50));
  add("ttft_p95", "ms", percentile(ttft_ms, 95));
  add("ttft_p99", "ms", percentile(ttft_ms, 99));
  add("hit_tokens", "tokens", static_cast<double>(sum.hit_tokens));
  if (sum.input_tokens > 0) {
    add("hit_ratio", "%", 100 * static_cast<double>(sum.hit_tokens) / static_cast<double>(sum.input_tokens));
  }
  if (sum.hit_chunks + sum.stored_chunks == 0) return;  // no directory was used
  const auto gib = [&](uint64_t chunks) {
    return static_cast<double>(chunks * bytes_per_chunk) / static_cast<double>(kGiB);
  };
  add("lost_after_probe", "chunks", static_cast<double>(sum.lost_chunks));
  add("unfound", "chunks", static_cast<double>(sum.unfound_chunks));
  if (sum.unfound_chunks > 0) add("unfound_age_max", "s", sum.unfound_age_s);
  add("read", "GiB", gib(sum.hit_chunks));
  add("written", "GiB", gib(sum.stored_chunks));
  if (!restore_ms.empty()) {
    add("restore_p50", "ms", percentile(restore_ms, 50));
    add("restore_p99", "ms", percentile(restore_ms, 99));
    add("read_rate", "GiB/s", gib(sum.hit_chunks) / sum.read_s, Limit::kRawRead);
  }
  if (sum.stored_chunks > 0) add("store_rate", "GiB/s", gib(sum.stored_chunks) / sum.store_s, Limit::kRawWrite);
}

void report_engines(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                    std::span<const EngineRequest> requests, std::span<const RequestOutcome> outcomes, unsigned engines,
                    uint64_t bytes_per_chunk) {
  for (unsigned engine = 0; engine < engines; ++engine) {
    std::vector<RequestOutcome> own;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].engine % engines == engine) own.push_back(outcomes[i]);
    }
    report_outcomes(report, workload, fmt::format("{}/node{}", scenario, engine + 1), dir, own, bytes_per_chunk);
  }
}

}  // namespace kvcachefs
