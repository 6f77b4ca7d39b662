// Conversations whose prompts grow: the requests of the workloads `contexts` and `multi-round`.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/bench/bench_settings.h"
#include "tools/load/request_engine.h"

namespace kvcachefs {

struct ConversationShape {
  unsigned conversations = 1;
  unsigned turns = 1;
  uint64_t first_tokens = 0;  // of the first prompt
  uint64_t turn_tokens = 0;   // tokens that every later turn adds to the history
};

inline constexpr uint64_t kConversationChunkTokens = 256;

// Orders requests by turn, and within a turn by conversation. Conversation c's turn t goes to engine (c + t) % instances, so
// that every turn finds its history written by another engine. Arrivals are 1 / requests_per_s apart.
std::vector<EngineRequest> conversation_requests(const ConversationShape& shape, uint64_t salt, unsigned instances,
                                                 double requests_per_s);

// The engine that serves these requests, at the scale of the settings.
EngineOptions conversation_engine(const BenchSettings& settings, AccessStyle style);
// The same engine with a clock that runs `time_scale` times faster. Both prefill and arrivals use that clock,
// so that an instance is busy for as large a part of the time as in reality.
EngineOptions paced_engine(EngineOptions engine, double time_scale);

// Number of chunks that all conversations store.
uint64_t conversation_chunks(const ConversationShape& shape);

}  // namespace kvcachefs
