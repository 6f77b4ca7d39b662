#include "tools/load/request_engine.h"

#include <filesystem>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include "tools/load/test_directory.h"

namespace kvcachefs {
namespace request_engine_test {

EngineOptions options(AccessStyle style, size_t pool_bytes = 1 << 20) {
  return {
      .style = style, .chunk_tokens = 16, .chunk_bytes = 8192, .prefill_tokens_per_s = 1000, .pool_bytes = pool_bytes};
}

EngineRequest request(std::vector<uint64_t> keys, uint64_t extra_tokens = 0) {
  EngineRequest made;
  made.input_tokens = keys.size() * 16 + extra_tokens;
  made.keys = std::move(keys);
  return made;
}

class RequestEngineTest : public ::testing::TestWithParam<AccessStyle> {
 protected:
  RequestOutcome serve(RequestEngine& engine, const EngineRequest& one) {
    auto outcome = engine.serve(one);
    if (outcome) return *outcome;
    ADD_FAILURE() << outcome.error().message;
    return {};
  }
  TestDirectory directory_{TestDirectory::On::kMemory};
  std::string root_ = directory_.path() + "/";
};

TEST_P(RequestEngineTest, SecondRequestHitsTheSharedPrefix) {
  auto engine = RequestEngine::create(root_, options(GetParam()), 0, 8);
  ASSERT_TRUE(engine);
  const RequestOutcome first = serve(*engine, request({1, 2, 3}, 5));
  EXPECT_EQ(first.hit_tokens, 0u);
  EXPECT_EQ(first.stored_chunks, 3u);
  EXPECT_DOUBLE_EQ(first.prefill_s, 53.0 / 1000);
  const RequestOutcome second = serve(*engine, request({1, 2, 9, 3}));
  EXPECT_EQ(second.hit_chunks, 2u);
  EXPECT_EQ(second.hit_tokens, 32u);
  EXPECT_EQ(second.lost_chunks, 0u);
  EXPECT_EQ(serve(*engine, request({1, 2, 9, 3})).hit_chunks, 4u);
}

TEST_P(RequestEngineTest, AChunkThatWasThereAlreadyCountsAsStoredOnlyIfItWasWrittenAgain) {
  auto engine = RequestEngine::create(root_, options(GetParam()), 0, 8);
  serve(*engine, request({1, 2, 3}));
  const ChunkName first = chunk_name(GetParam(), 1, 0);
  std::filesystem::remove(root_ + (first.sidecar.empty() ? first.path : first.sidecar));
  const RequestOutcome again = serve(*engine, request({1, 2, 3}));
  EXPECT_EQ(again.hit_chunks, 0u);
  EXPECT_EQ(again.stored_chunks, GetParam() == AccessStyle::kVllm ? 1u : 3u);
}

TEST_P(RequestEngineTest, AWholeHitStillComputesOneToken) {
  auto engine = RequestEngine::create(root_, options(GetParam()), 0, 8);
  serve(*engine, request({1, 2}));
  EXPECT_DOUBLE_EQ(serve(*engine, request({1, 2})).prefill_s, 1.0 / 1000);
}

TEST_P(RequestEngineTest, FewBuffersAreReusedAndStillChecked) {
  auto engine = RequestEngine::create(root_, options(GetParam(), 1), 0, 300);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 300; ++i) keys.push_back(i);  // more than one batch of the style that probes by batches
  serve(*engine, request(keys));
  EXPECT_EQ(serve(*engine, request(keys)).hit_chunks, 300u);
}

TEST_P(RequestEngineTest, WrongBytesFailTheRequest) {
  auto engine = RequestEngine::create(root_, options(GetParam()), 0, 8);
  serve(*engine, request({1, 2}));
  const std::string from = root_ + chunk_name(GetParam(), 2, 0).path, to = root_ + chunk_name(GetParam(), 1, 0).path;
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  const auto outcome = engine->serve(request({1, 2}));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCorrupt);
}

// A place in the content that no sample covers.
void break_a_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(4321);
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(4321);
  file.put(flipped);
}

std::vector<uint64_t> many_keys() {
  std::vector<uint64_t> keys(300);  // more than two batches of the style that probes by batches
  std::iota(keys.begin(), keys.end(), 1);
  return keys;
}

TEST_P(RequestEngineTest, NothingIsComparedBeforeTheLastChunkWasRead) {
  auto engine = RequestEngine::create(root_, options(GetParam(), 8 << 20), 0, 300);
  serve(*engine, request(many_keys()));
  break_a_byte(root_ + chunk_name(GetParam(), 1, 0).path);
  const std::string late = chunk_name(GetParam(), 200, 0).path;
  std::filesystem::resize_file(root_ + late, 100);
  const auto outcome = engine->serve(request(many_keys()));
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().message.find(late), std::string::npos) << outcome.error().message;
}

TEST_P(RequestEngineTest, WhatFewBuffersCouldNotKeepIsReadAgainAfterTheRequest) {
  auto engine = RequestEngine::create(root_, options(GetParam(), 1), 0, 8);
  serve(*engine, request({1, 2, 3}));
  break_a_byte(root_ + chunk_name(GetParam(), 1, 0).path);
  const auto outcome = engine->serve(request({1, 2, 3, 9}));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCorrupt);
  EXPECT_NE(outcome.error().message.find("4321"), std::string::npos) << outcome.error().message;
  EXPECT_TRUE(std::filesystem::exists(root_ + chunk_name(GetParam(), 9, 0).path)) << "the request had ended";
}

INSTANTIATE_TEST_SUITE_P(Styles, RequestEngineTest,
                         ::testing::Values(AccessStyle::kRead, AccessStyle::kVllm, AccessStyle::kLmcacheGds,
                                           AccessStyle::kSglang, AccessStyle::kMmap));

}  // namespace request_engine_test
}  // namespace kvcachefs
