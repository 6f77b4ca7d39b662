// Request traces: the requests to an engine, block by block.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

struct TraceRequest {
  double arrival_s = 0;
  uint64_t input_tokens = 0;
  uint32_t session = 0;  // from 1 in a trace of sessions; 0 elsewhere
  std::vector<uint64_t> blocks;  // equal ids mean equal blocks and equal predecessors, across all requests
};

struct Trace {
  uint64_t block_tokens = 0;
  std::vector<TraceRequest> requests;  // by arrival
};

// Two formats, JSON lines both, told apart by their fields; unknown fields are ignored.
//  - one request a line: {timestamp (ms), input_length, output_length, hash_ids}; a block is 512 tokens.
//  - one session a line: {block_size, hash_id_scope, requests: [{t (s), in, hash_ids, requests: [nested]}]}: ids are
//    local to the session unless the scope says "global"; the times of nested requests count from their parent's.
class TraceParser {
 public:
  // The error describes the problem of the line; the caller adds its number.
  Status add_line(std::string_view line);
  // Returns the trace sorted by arrival. Fails if there was no request at all.
  Result<Trace> finish() &&;

 private:
  Status set_block_tokens(uint64_t tokens);

  Trace trace_;
  uint32_t sessions_ = 0;
};

// Reads a plain or gzip file. Errors name file and line.
Result<Trace> read_trace(const std::string& path);

}  // namespace kvcachefs
