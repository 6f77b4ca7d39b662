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
  uint64_t turn_tokens = 0;   // that every later turn adds to the history
};

inline constexpr uint64_t kConversationChunkTokens = 256;

// Turn by turn, in each the conversations in order. Conversation c's turn t goes to engine (c + t) % instances, so
// that every turn finds its history written by another one. Arrivals are 1 / requests_per_s apart.
std::vector<EngineRequest> conversation_requests(const ConversationShape& shape, uint64_t salt, unsigned instances,
                                                 double requests_per_s);

// The engine that serves them, at the scale of the settings.
EngineOptions conversation_engine(const BenchSettings& settings, AccessStyle style);
// The same engine in a world whose clock runs `time_scale` times faster: prefill takes its time on that clock, as the
// arrivals do, so that an instance is busy for as large a part of the time as it really would be.
EngineOptions paced_engine(EngineOptions engine, double time_scale);

// Chunks that the whole of it leaves behind.
uint64_t conversation_chunks(const ConversationShape& shape);

}  // namespace kvcachefs
