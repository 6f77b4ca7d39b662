// The accuracy that prefetch must reach on request traces. KVCACHEFS_TRACES names a directory of plain *.jsonl files
// (chain_sim.h says in which form); without it only the built-in conversation is replayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "store/chain/chain_sim.h"

namespace kvcachefs::chain_sim {
namespace chain_trace_test {

// Conversations over one system prompt: each turn repeats all before it and adds some blocks.
std::vector<Request> conversations(size_t count, size_t turns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<uint64_t>> prefixes(count, {1, 2, 3});
  std::vector<Request> out;
  uint64_t next = 10;
  for (size_t i = 0; i < count * turns; ++i) {
    auto& prefix = prefixes[random() % count];
    for (uint64_t added = 4 + random() % 20; added > 0; --added) prefix.push_back(next++);
    out.push_back({static_cast<double>(i), prefix});
  }
  return out;
}

void expect_bars(const std::vector<Request>& requests, Config config, const std::string& what) {
  for (const bool random_order : {false, true}) {
    config.random_store_order = random_order;
    const Report report = run(requests, config);
    std::printf("%s, %s store order: %s\n", what.c_str(), random_order ? "random" : "prefix", report.text().c_str());
    EXPECT_GE(report.prefetched_share(), 0.90) << what << report.text();
    EXPECT_GE(report.used_share(), 0.95) << what << report.text();
    EXPECT_GT(report.from_prefetch_bytes, 0u) << what;
    EXPECT_LE(report.evicted_expected_bytes, report.reread_bytes / 100) << what;
  }
}

TEST(ChainTrace, Conversations) { expect_bars(conversations(40, 8, 1), {}, "conversations"); }

TEST(ChainTrace, ConversationsReadByAPool) {
  Config config;
  config.pattern = ReadPattern::kPool;
  expect_bars(conversations(40, 8, 2), config, "conversations, pool of 4");
}

TEST(ChainTrace, ConversationsWithoutProbes) {
  Config config;
  config.probe = false;
  const Report report = run(conversations(40, 8, 3), config);
  std::printf("%s\n", report.text().c_str());
  EXPECT_GE(report.prefetched_share(), 0.90);
  EXPECT_GE(report.used_share(), 0.80);
}

TEST(ChainTrace, TheSameTraceGivesTheSameFigures) {
  const auto requests = conversations(20, 5, 4);
  const Report first = run(requests, {});
  const Report second = run(requests, {});
  EXPECT_EQ(first.from_prefetch_bytes, second.from_prefetch_bytes);
  EXPECT_EQ(first.totals.planned_objects, second.totals.planned_objects);
  EXPECT_EQ(first.totals.used_bytes, second.totals.used_bytes);
}

TEST(ChainTrace, BadTraces) {
  EXPECT_FALSE(read_trace("/nonexistent/trace.jsonl").has_value());
  const auto path = std::filesystem::path(::testing::TempDir()) / "kvcachefs_chain_bad.jsonl";
  FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("{\"timestamp\": 5, \"hash_ids\": [1, 2]}\n{\"timestamp\": 6, \"hash_ids\": [1,", file);
  std::fclose(file);
  const auto bad = read_trace(path.string());
  std::filesystem::remove(path);
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().message.find("line 2"), std::string::npos);
}

TEST(ChainTrace, RecordedTraces) {
  const char* directory = std::getenv("KVCACHEFS_TRACES");
  if (directory == nullptr) GTEST_SKIP() << "KVCACHEFS_TRACES names no directory of *.jsonl traces";
  size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".jsonl") continue;
    ++found;
    auto requests = read_trace(entry.path().string());
    ASSERT_TRUE(requests.has_value()) << requests.error().message;
    Config config;
    config.max_requests = 4000;  // a slice: minutes otherwise
    expect_bars(*requests, config, entry.path().filename().string());
  }
  EXPECT_GT(found, 0u) << directory << " holds no *.jsonl file";
}

}  // namespace chain_trace_test
}  // namespace kvcachefs::chain_sim
