#include "tools/bench/conversation.h"

#include "tools/bench/presets.h"
#include "tools/load/payload.h"

namespace kvcachefs {
namespace {
uint64_t tokens_at(const ConversationShape& shape, unsigned turn) {
  return shape.first_tokens + turn * shape.turn_tokens;
}
}  // namespace

std::vector<EngineRequest> conversation_requests(const ConversationShape& shape, uint64_t salt, unsigned instances,
                                                 double requests_per_s) {
  std::vector<EngineRequest> requests;
  for (unsigned turn = 0; turn < shape.turns; ++turn) {
    for (unsigned conversation = 0; conversation < shape.conversations; ++conversation) {
      EngineRequest request;
      request.arrival_s = static_cast<double>(requests.size()) / requests_per_s;
      request.engine = (conversation + turn) % instances;
      request.input_tokens = tokens_at(shape, turn);
      const uint64_t base = mix64(salt + conversation);
      for (uint64_t i = 0; i < request.input_tokens / kConversationChunkTokens; ++i) request.keys.push_back(base + i);
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

EngineOptions conversation_engine(const BenchSettings& settings, AccessStyle style) {
  return {.style = style,
          .chunk_tokens = kConversationChunkTokens,
          .chunk_bytes = scaled_chunk_bytes(settings, kConversationChunkTokens),
          .pool_bytes = settings.pool_bytes / 4};
}

EngineOptions paced_engine(EngineOptions engine, double time_scale) {
  engine.sleep_prefill = true;
  engine.prefill_tokens_per_s *= time_scale;
  return engine;
}

uint64_t conversation_chunks(const ConversationShape& shape) {
  return shape.conversations * (tokens_at(shape, shape.turns - 1) / kConversationChunkTokens);
}

}  // namespace kvcachefs
