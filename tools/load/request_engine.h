// An inference engine reduced to what its cache directory sees of it: for each request probe the prefix, read what is
// there, compute the rest at a given speed, write the new chunks. Every byte read is checked, off the clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/access_style.h"
#include "tools/load/arena.h"
#include "tools/load/chunk_io.h"
#include "tools/load/slot.h"

namespace kvcachefs {

struct EngineRequest {
  double arrival_s = 0;
  unsigned engine = 0;  // which of the run's engines serves it
  uint64_t input_tokens = 0;
  std::vector<uint64_t> keys;  // of its whole chunks, in prefix order; what is left of the input is never stored
};

struct EngineOptions {
  AccessStyle style = AccessStyle::kRead;
  uint64_t chunk_tokens = 256;
  uint64_t chunk_bytes = 0;
  double prefill_tokens_per_s = 10000;
  bool sleep_prefill = false;       // wait as long as the prefill would take, instead of only adding it up
  bool random_store_order = false;  // as vLLM writes the blocks of a request
  size_t pool_bytes = 0;            // read buffers of one worker
};

struct RequestOutcome {
  double begin_s = 0;  // when it was begun and ended, since the start of the run
  double end_s = 0;
  double queue_s = 0;  // arrival to start; 0 in a closed loop
  double probe_s = 0;
  double read_s = 0;
  double prefill_s = 0;  // of the tokens not found
  double store_s = 0;    // of the chunks stored, after the first token
  double client_cpu_s = 0;
  uint64_t input_tokens = 0;
  uint64_t hit_tokens = 0;
  uint64_t hit_chunks = 0;
  uint64_t lost_chunks = 0;  // probed as present and gone when read
  uint64_t stored_chunks = 0;  // really written: not those that the style found there when it looked again
  uint64_t unfound_chunks = 0;  // not found, though a request that had ended before this one began stored them
  double unfound_age_s = 0;     // since that request ended, the longest of them

  double ttft_s() const { return queue_s + probe_s + read_s + prefill_s; }
};

size_t max_chunks(std::span<const EngineRequest> requests);

// One per worker thread.
class RequestEngine {
 public:
  // `root` exists and ends with a slash; `worker` tells this one's temp names from the others'; no request has more
  // than `max_chunks` (else buffers are reused, as when the pool is small: what was found is then read again after the
  // request, to be compared).
  static Result<RequestEngine> create(const std::string& root, const EngineOptions& options, unsigned worker,
                                      size_t max_chunks);

  Result<RequestOutcome> serve(const EngineRequest& request);

 private:
  RequestEngine(const std::string& root, const EngineOptions& options, unsigned worker, SlotPool pool, Arena content);

  using Names = std::vector<ChunkName>;
  Result<size_t> probe(const Names& names, size_t from, size_t count, RequestOutcome& outcome);
  Result<size_t> load(const Names& names, size_t from, size_t count, RequestOutcome& outcome);
  Status restore(const Names& names, RequestOutcome& outcome);
  Status verify_again(const Names& names, size_t count);
  void prefill(RequestOutcome& outcome) const;
  Status store(const Names& names, size_t from, RequestOutcome& outcome);

  EngineOptions options_;
  uint64_t file_bytes_;
  ChunkIo io_;
  SlotPool pool_;
  Arena content_;  // one file's bytes, to be written
  uint64_t shuffle_seed_;
};

}  // namespace kvcachefs
