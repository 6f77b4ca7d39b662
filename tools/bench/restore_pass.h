// Reads chains of chunks back and measures the time; shared by the workloads that restore.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/bench/bench_case.h"
#include "tools/load/access_style.h"
#include "tools/load/phase.h"
#include "tools/load/slot.h"

namespace kvcachefs {

using Chain = std::vector<ChunkName>;

struct PassSpec {
  AccessStyle style = AccessStyle::kRead;
  uint64_t chunk_bytes = 0;
  unsigned threads_per_chain = 1;
};

struct PassResult {
  PhaseCost cost;
  std::vector<double> load_us;  // of each chunk, in no order
  uint64_t bytes = 0;
};

// How many chunks a thread takes at a time: as many as the style probes at once, but few enough that each thread gets some.
size_t chunks_claimed(AccessStyle style, size_t chunks, unsigned threads);

// A pool that fits `chunks` chunks of the pass, or as many as the settings allow.
Result<SlotPool> make_pool(const BenchSettings& settings, const PassSpec& spec, size_t chunks, unsigned threads);

// Writes the chains, each by a thread of its own in prefix order.
Status store_chains(const std::string& root, const PassSpec& spec, std::span<const Chain> chains);

// Reads every chain once, in prefix order, all chains concurrently. With several threads per chain, each takes the next
// chunk, or the next batch if the style probes in batches. Then checks every byte while the clock is stopped, and reads again
// the chunks that the pool could not keep.
Result<PassResult> restore_pass(const std::string& root, const PassSpec& spec, std::span<const Chain> chains,
                                SlotPool& pool);

// Rate, latencies, CPU and counters of a pass, as "<phase>_rate" and so on.
void report_pass(Report& report, const Metric& base, size_t dir, const std::string& phase, const PassResult& pass);

// Reports under `base`: the cold phase, the warm phase, and with `--restart-command` a third phase on a kvcachefs.
Status restore_phases(BenchContext& context, const CaseDir& dir, const Metric& base, const PassSpec& spec,
                      std::span<const Chain> chains, SlotPool& pool);

}  // namespace kvcachefs
