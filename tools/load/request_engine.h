// An inference engine reduced to its cache directory traffic: for each request it probes the prefix, reads the chunks that
// exist, computes the rest at a given speed, and writes the new chunks. Checks every byte read while the clock is stopped.
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
  unsigned engine = 0;  // the engine of the run that serves it
  uint64_t input_tokens = 0;
  std::vector<uint64_t> keys;  // of its whole chunks, in prefix order; the rest of the input is never stored
};

struct EngineOptions {
  AccessStyle style = AccessStyle::kRead;
  uint64_t chunk_tokens = 256;
  uint64_t chunk_bytes = 0;
  double prefill_tokens_per_s = 10000;
  bool sleep_prefill = false;       // sleep for the time of the prefill, instead of only adding it up
  bool random_store_order = false;  // as vLLM writes the blocks of a request
  size_t pool_bytes = 0;            // read buffers of one worker
};

struct RequestOutcome {
  double begin_s = 0;  // begin and end, since the start of the run
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
  uint64_t lost_chunks = 0;  // found by the probe, but gone when read
  uint64_t stored_chunks = 0;  // chunks really written, without those that the style found when it checked again
  uint64_t unfound_chunks = 0;  // not found, although a request that ended before this one began stored them
  double unfound_age_s = 0;     // longest time since that request ended

  double ttft_s() const { return queue_s + probe_s + read_s + prefill_s; }
};

size_t max_chunks(std::span<const EngineRequest> requests);

// One per worker thread.
class RequestEngine {
 public:
  // `root` exists and ends with a slash. `worker` makes this worker's temp names differ from the others'. No request should have more
  // than `max_chunks` (otherwise buffers are reused, as with a small pool: the chunks found are then read again after the
  // request and compared).
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
