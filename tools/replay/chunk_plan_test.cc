#include "tools/replay/chunk_plan.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace chunk_plan_test {

TraceRequest request(uint64_t tokens, std::vector<uint64_t> blocks) {
  return {.arrival_s = 0, .input_tokens = tokens, .blocks = std::move(blocks)};
}

TEST(ChunkPlan, OneChunkABlock) { EXPECT_EQ(chunk_keys(request(1536, {1, 2, 3}), 512, 512, 0).size(), 3u); }

TEST(ChunkPlan, OnlyWholeChunksAreKept) {
  EXPECT_EQ(chunk_keys(request(1500, {1, 2, 3}), 512, 512, 0).size(), 2u);
  EXPECT_EQ(chunk_keys(request(1500, {1, 2, 3}), 512, 256, 0).size(), 5u);
  EXPECT_EQ(chunk_keys(request(1500, {1, 2, 3}), 512, 1024, 0).size(), 1u);
  EXPECT_EQ(chunk_keys(request(9999, {1}), 512, 512, 0).size(), 1u) << "tokens without a block have no key";
}

TEST(ChunkPlan, EqualPrefixesHaveEqualKeysAndPartsDiffer) {
  const auto one = chunk_keys(request(2048, {1, 2, 3, 4}), 512, 128, 0);
  const auto two = chunk_keys(request(2048, {1, 2, 9, 10}), 512, 128, 0);
  ASSERT_EQ(one.size(), 16u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(one[i], two[i]);
  for (size_t i = 8; i < 16; ++i) EXPECT_NE(one[i], two[i]);
  for (size_t i = 1; i < 16; ++i) EXPECT_NE(one[i], one[i - 1]);
}

TEST(ChunkPlan, SaltMakesOtherKeys) {
  EXPECT_NE(chunk_keys(request(512, {1}), 512, 512, 0), chunk_keys(request(512, {1}), 512, 512, 1));
}

TEST(ChunkPlan, ChunkTokensMustFitTheBlocks) {
  EXPECT_TRUE(check_chunk_tokens(256, 512));
  EXPECT_TRUE(check_chunk_tokens(2048, 512));
  const Status odd = check_chunk_tokens(300, 512);
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("300"), std::string::npos);
}

TEST(ChunkPlan, TotalsAndLimit) {
  Trace trace{.block_tokens = 512, .requests = {request(1024, {1, 2}), request(1536, {1, 2, 3}), request(512, {9})}};
  trace.requests[0].arrival_s = 5;
  trace.requests[1].arrival_s = 7;
  const auto requests = engine_requests(trace, {.chunk_tokens = 512, .limit = 2}, 0);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[1].arrival_s, 2.0) << "from the first request on";
  const PlanTotals totals = plan_totals(requests);
  EXPECT_EQ(totals.chunks, 5u);
  EXPECT_EQ(totals.distinct_chunks, 3u);
  EXPECT_EQ(totals.input_tokens, 2560u);
}

std::vector<unsigned> dealt(const Trace& trace, Deal deal, unsigned engines) {
  std::vector<unsigned> found;
  for (const EngineRequest& one : engine_requests(trace, {.chunk_tokens = 512, .engines = engines, .deal = deal}, 0)) {
    found.push_back(one.engine);
  }
  return found;
}

TEST(ChunkPlan, RequestsAreDealtInTurnOrBySession) {
  Trace trace{.block_tokens = 512, .requests = {}};
  for (const uint32_t session : {7u, 3u, 7u, 7u, 5u, 3u}) {
    trace.requests.push_back(request(512, {session}));
    trace.requests.back().session = session;
  }
  EXPECT_EQ(dealt(trace, Deal::kRoundRobin, 2), (std::vector<unsigned>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(dealt(trace, Deal::kRoundRobin, 1), (std::vector<unsigned>{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(dealt(trace, Deal::kSession, 2), (std::vector<unsigned>{0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(dealt(trace, Deal::kSession, 3), (std::vector<unsigned>{0, 1, 0, 0, 2, 1}));
}

TEST(ChunkPlan, ATraceWithoutSessionsCannotBeDealtByThem) {
  Trace trace{.block_tokens = 512, .requests = {request(512, {1})}};
  EXPECT_TRUE(check_deal(Deal::kRoundRobin, trace));
  const Status refused = check_deal(Deal::kSession, trace);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("--deal round-robin"), std::string::npos);
  trace.requests[0].session = 1;
  EXPECT_TRUE(check_deal(Deal::kSession, trace));
}

}  // namespace chunk_plan_test
}  // namespace kvcachefs
