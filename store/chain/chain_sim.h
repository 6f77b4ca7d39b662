// Test helper: replays engines that share one mount against Chains, with a simulated clock, volume and RAM. Nothing is read or
// written; it measures which reads found their bytes prefetched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/chain/chains.h"

namespace kvcachefs::chain_sim {

struct Request {
  double at_s = 0;
  std::vector<uint64_t> blocks;  // in prefix order; ids are unique over the whole trace
};
// Reads one request a line ({"timestamp": ms, "hash_ids": [...]}) or one session a line ({"requests": [{"t": s, "hash_ids":
// [...]}, ...]}, ids local to the session, sub-agents nested). Returns them in order of time.
Result<std::vector<Request>> read_trace(const std::string& path);

enum class ReadPattern : uint8_t {
  kSerial,      // one thread, one chunk after another
  kPool,        // each of `threads` takes the next chunk
  kContiguous,  // each of `threads` reads its own part of the prefix
};

struct Config {
  uint64_t chunk_bytes = uint64_t{2} << 20;
  double ram_fraction = 0.1;  // of the distinct bytes
  size_t workers = 4;         // requests served at once
  size_t threads = 4;         // for the reads of one request, unless serial
  ReadPattern pattern = ReadPattern::kSerial;
  bool probe = true;                // false: the client remembers names and opens them directly
  bool random_store_order = false;  // blocks of one request are written in random order
  double volume_bytes_per_s = 2.0e9;
  int64_t volume_latency_ns = 200'000;
  double reader_bytes_per_s = 6.0e9;
  int64_t probe_ns = 20'000;
  int64_t schedule_ns = 5'000'000;     // between probes and loads
  int64_t block_compute_ns = 200'000;  // for each missing block
  size_t max_requests = SIZE_MAX;
  uint64_t seed = 1;
  ChainsOptions chains;
};

struct Report {
  uint64_t requests = 0;
  uint64_t reread_bytes = 0;       // all bytes read back
  uint64_t beyond_bytes = 0;       // of these: beyond the first two chunks of a run
  uint64_t from_recent_bytes = 0;  // of beyond_bytes: still in RAM since they were written or read before
  uint64_t from_prefetch_bytes = 0;
  uint64_t late_bytes = 0;  // of from_prefetch_bytes: the reader waited for the rest of the load
  uint64_t from_demand_bytes = 0;
  uint64_t evicted_expected_bytes = 0;  // left RAM although expected to be used soon
  PrefetchTotals totals;                // at the end; bytes unread in RAM count as wasted
  uint64_t events = 0;
  double ns_per_event = 0;           // wall time in Chains with planning: equals CPU time only on an idle machine
  uint64_t out_of_order_layout = 0;  // neighbours in flush order that are no neighbours in the prefix
  uint64_t laid_out = 0;

  // Shares of the re-read bytes beyond the first two chunks of a run that were not in RAM anyway.
  double prefetched_share() const;
  double used_share() const;
  std::string text() const;
};

Report run(const std::vector<Request>& requests, const Config& config);

}  // namespace kvcachefs::chain_sim
