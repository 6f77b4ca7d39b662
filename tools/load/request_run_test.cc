#include "tools/load/request_run.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tools/load/test_directory.h"

namespace kvcachefs {
namespace request_run_test {

EngineOptions options() {
  return {.style = AccessStyle::kRead,
          .chunk_tokens = 16,
          .chunk_bytes = 8192,
          .prefill_tokens_per_s = 1000,
          .pool_bytes = 1 << 20};
}

EngineRequest request_of(std::vector<uint64_t> keys, unsigned engine = 0) {
  EngineRequest made;
  made.engine = engine;
  made.input_tokens = keys.size() * 16;
  made.keys = std::move(keys);
  return made;
}

bool has_chunk(const TestDirectory& directory, uint64_t key) {
  return std::filesystem::exists(directory.path() + "/" + chunk_name(AccessStyle::kRead, key, 0).path);
}

TEST(RequestRun, EveryRequestIsServedOnceInBothLoops) {
  std::vector<EngineRequest> requests;
  for (uint64_t i = 0; i < 40; ++i) {
    requests.push_back(request_of({i % 10, 100 + i}));
    requests.back().arrival_s = static_cast<double>(i) / 10;
    requests.back().engine = static_cast<unsigned>(i % 3);
  }
  for (const RunOptions run : {RunOptions{.workers = 3}, RunOptions{.engines = 3, .workers = 1},
                               RunOptions{.engines = 2, .workers = 2},
                               RunOptions{.engines = 3, .workers = 1, .open_loop = true, .time_scale = 1000},
                               RunOptions{.workers = 3, .open_loop = true, .time_scale = 1000}}) {
    const TestDirectory directory(TestDirectory::On::kMemory);
    size_t done = 0;
    const auto result =
        run_requests({directory.path() + "/"}, options(), run, requests, [&] { ++done; });
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(done, requests.size());
    uint64_t hits = 0, stored = 0;
    for (const RequestOutcome& one : result->outcomes) {
      EXPECT_EQ(one.input_tokens, 32u);
      hits += one.hit_chunks;
      stored += one.stored_chunks;
    }
    EXPECT_EQ(hits + stored, 80u);
    EXPECT_GE(stored, 50u);
  }
}

TEST(RecomputeOnly, ClosedLoopIsPrefillAlone) {
  const std::vector<EngineRequest> requests = {request_of({1, 2}), request_of({1, 2})};
  const auto outcomes = recompute_only(options(), {.workers = 1}, requests);
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_DOUBLE_EQ(outcomes[1].ttft_s(), 0.032);
}

TEST(RecomputeOnly, OpenLoopWaitsForAFreeWorker) {
  const std::vector<EngineRequest> requests = {request_of({1, 2}), request_of({3, 4}), request_of({5, 6})};
  const auto two = recompute_only(options(), {.workers = 2, .open_loop = true}, requests);
  EXPECT_DOUBLE_EQ(two[0].queue_s, 0);
  EXPECT_DOUBLE_EQ(two[1].queue_s, 0);
  EXPECT_DOUBLE_EQ(two[2].queue_s, 0.032);
}

TEST(RequestRun, AnEngineUsesItsOwnDirectory) {
  const TestDirectory a(TestDirectory::On::kMemory), b(TestDirectory::On::kMemory);
  const std::vector<EngineRequest> requests = {request_of({1}, 0), request_of({2}, 1), request_of({1}, 1), request_of({2, 3}, 1)};
  const auto result =
      run_requests({a.path() + "/", b.path() + "/"}, options(), {.engines = 2, .workers = 1}, requests, [] {});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->outcomes[2].hit_chunks, 0u) << "stored by the other";
  EXPECT_EQ(result->outcomes[3].hit_chunks, 1u);
  EXPECT_TRUE(has_chunk(a, 1) && !has_chunk(a, 2) && !has_chunk(a, 3));
  EXPECT_TRUE(has_chunk(b, 1) && has_chunk(b, 2) && has_chunk(b, 3));
}

TEST(RequestRun, InAClosedLoopRequestsBeginInTheirOrder) {
  const TestDirectory directory(TestDirectory::On::kMemory);
  std::vector<EngineRequest> requests;
  // All the work is one engine's.
  for (uint64_t i = 0; i < 40; ++i) {
    std::vector<uint64_t> keys;
    for (uint64_t part = 0; i % 2 == 0 && part < 30; ++part) keys.push_back(1000 * i + part);
    requests.push_back(request_of(keys, static_cast<unsigned>(i % 2)));
  }
  const auto result =
      run_requests({directory.path() + "/"}, options(), {.engines = 2, .workers = 1}, requests, [] {});
  ASSERT_TRUE(result) << result.error().message;
  // The engine without work is never further than at the request after the one that the other has begun.
  for (size_t i = 3; i < requests.size(); i += 2) {
    EXPECT_GE(result->outcomes[i].begin_s, result->outcomes[i - 3].end_s) << i;
  }
}

TEST(RequestRun, AnErrorOfOneEngineEndsTheOthers) {
  const TestDirectory a(TestDirectory::On::kMemory), b(TestDirectory::On::kMemory);
  std::filesystem::create_directories(a.path() + "/" + chunk_name(AccessStyle::kRead, 1, 0).path);  // no file
  std::vector<EngineRequest> requests = {request_of({1}, 0)};
  for (uint64_t i = 2; i < 50; ++i) requests.push_back(request_of({i}, static_cast<unsigned>(i % 2)));
  for (const bool open_loop : {false, true}) {
    const RunOptions run{.engines = 2, .workers = 2, .open_loop = open_loop};
    const auto result = run_requests({a.path() + "/", b.path() + "/"}, options(), run, requests, [] {});
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find(a.path()), std::string::npos) << result.error().message;
  }
}

RequestOutcome outcome(double begin_s, double end_s, uint64_t hit_chunks) {
  RequestOutcome made;
  made.begin_s = begin_s;
  made.end_s = end_s;
  made.hit_chunks = hit_chunks;
  return made;
}

TEST(CountUnfound, WhatAnEndedRequestStoredAndALaterOneDidNotFind) {
  const std::vector<EngineRequest> requests = {request_of({1, 2}), request_of({1, 2, 3}), request_of({1, 2, 3, 4}), request_of({1, 9})};
  std::vector<RequestOutcome> outcomes = {outcome(0, 1, 0), outcome(0.5, 2, 0), outcome(5, 6, 1), outcome(0.9, 1.5, 0)};
  count_unfound(requests, outcomes);
  EXPECT_EQ(outcomes[0].unfound_chunks, 0u);
  EXPECT_EQ(outcomes[1].unfound_chunks, 0u) << "the first had not ended";
  EXPECT_EQ(outcomes[2].unfound_chunks, 2u) << "2 and 3; nobody stored 4, and 1 was found";
  EXPECT_DOUBLE_EQ(outcomes[2].unfound_age_s, 3) << "both were stored last by the second";
  EXPECT_EQ(outcomes[3].unfound_chunks, 0u);
}

TEST(RecomputeOnly, EnginesWaitForTheirOwnWorkers) {
  const std::vector<EngineRequest> requests = {request_of({1, 2}, 0), request_of({3, 4}, 0), request_of({5, 6}, 1)};
  const auto outcomes = recompute_only(options(), {.engines = 2, .workers = 1, .open_loop = true}, requests);
  EXPECT_DOUBLE_EQ(outcomes[0].queue_s, 0);
  EXPECT_DOUBLE_EQ(outcomes[1].queue_s, 0.032);
  EXPECT_DOUBLE_EQ(outcomes[2].queue_s, 0);
}

}  // namespace request_run_test
}  // namespace kvcachefs
