#include "tools/replay/replay_runner.h"

#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/load/test_directory.h"
#include "tools/replay/replay_command.h"

namespace kvcachefs {
namespace replay_runner_test {

constexpr auto kMemory = TestDirectory::On::kMemory;

// Conversations of three turns, each turn two blocks longer.
Trace conversations(uint64_t count = 10) {
  Trace trace{.block_tokens = 64, .requests = {}};
  for (uint64_t turn = 1; turn <= 3; ++turn) {
    for (uint64_t c = 0; c < count; ++c) {
      TraceRequest request{.arrival_s = static_cast<double>(turn * 10 + c), .input_tokens = turn * 128, .session = static_cast<uint32_t>(c + 1), .blocks = {}};
      for (uint64_t block = 0; block < turn * 2; ++block) request.blocks.push_back(c * 100 + block);
      trace.requests.push_back(request);
    }
  }
  return trace;
}

ReplaySettings settings(const std::vector<std::string>& dirs) {
  ReplaySettings made{
      .targets = {dirs, {}}, .rounds = 2, .requests = 0, .engine = {}, .run = {}, .seed = 3, .keep_caches = true};
  made.engine = {.style = AccessStyle::kVllm,
                 .chunk_tokens = 32,
                 .chunk_bytes = 8192,
                 .prefill_tokens_per_s = 1000,
                 .random_store_order = true,
                 .pool_bytes = 1 << 20};
  return made;
}

std::map<std::string, double> medians(const Report& report, const std::string& dir) {
  std::map<std::string, double> found;
  for (const auto& entry : nlohmann::json::parse(report.json())) {
    const std::string metric = entry["metric"];
    if (entry["dir"] != dir) continue;
    const size_t node = metric.find("/node");
    found[metric.substr((node == metric.npos ? metric.rfind('/') : node) + 1)] = entry["median"];
  }
  return found;
}

TEST(ReplayRunner, HitsAreWhatTheTraceRepeats) {
  const TestDirectory a(kMemory), b(kMemory);
  const ReplaySettings replay = settings({a.path(), b.path()});
  Report report(column_names(replay.targets));
  const Status done = run_replay(replay, conversations(), report);
  ASSERT_TRUE(done) << done.error().message;
  for (const std::string& dir : replay.targets.dirs) {
    const auto values = medians(report, dir);
    // Turn 2 finds 128 tokens, turn 3 finds 256, of 10 conversations each.
    EXPECT_EQ(values.at("hit_tokens"), 3840);
    EXPECT_EQ(values.at("lost_after_probe"), 0);
    EXPECT_GT(values.at("ttft_p99"), 0);
  }
  const auto recompute = medians(report, "recompute-only");
  EXPECT_EQ(recompute.at("hit_tokens"), 0);
  EXPECT_EQ(recompute.at("ttft_p99"), 384);
  EXPECT_FALSE(recompute.contains("read"));
  EXPECT_TRUE(a.empty() && b.empty());
}

TEST(ReplayRunner, OpenLoopWithManyWorkers) {
  const TestDirectory a(kMemory);
  ReplaySettings replay = settings({a.path()});
  replay.rounds = 1;
  replay.run = {.engines = 1, .workers = 4, .open_loop = true, .time_scale = 1e6};
  replay.engine.prefill_tokens_per_s = 1e8;
  replay.engine.sleep_prefill = true;
  Report report(column_names(replay.targets));
  ASSERT_TRUE(run_replay(replay, conversations(), report));
  EXPECT_GT(medians(report, a.path()).at("written"), 0);
}

// Nine conversations: with two engines in turn, each turn is served by another than the one before.
TEST(ReplayRunner, NodesWithDirectoriesOfTheirOwnFindWhatTheyStored) {
  const TestDirectory both(kMemory), a(kMemory), b(kMemory);
  ReplaySettings replay = settings({both.path()});
  replay.targets.nodes = {{a.path(), b.path()}};
  const std::string nodes = a.path() + "," + b.path();
  Report report(column_names(replay.targets));
  const Status done = run_replay(replay, conversations(9), report);
  ASSERT_TRUE(done) << done.error().message;
  const auto shared = medians(report, both.path()), own = medians(report, nodes);
  EXPECT_EQ(shared.at("hit_tokens"), 9 * (128 + 256));
  EXPECT_EQ(shared.at("unfound"), 0);
  EXPECT_EQ(own.at("hit_tokens"), 9 * 128) << "the third turn finds the first";
  // All of turn 1 in turn 2, and what turn 2 added in turn 3.
  EXPECT_EQ(own.at("unfound"), 9 * (128 + 128) / 32);
  // Node 1 has five of the conversations' first and third turns.
  EXPECT_EQ(own.at("node1/hit_tokens"), 5 * 128);
  EXPECT_EQ(own.at("node2/hit_tokens"), 4 * 128);
  EXPECT_EQ(shared.at("node1/hit_tokens") + shared.at("node2/hit_tokens"), shared.at("hit_tokens"));
  EXPECT_GT(own.at("node2/ttft_p99"), 0);
  EXPECT_GT(own.at("node1/written"), own.at("node2/written"));
  EXPECT_TRUE(both.empty() && a.empty() && b.empty());
}

TEST(ReplayRunner, ASessionDealtToOneNodeFindsAllOfItThere) {
  const TestDirectory a(kMemory), b(kMemory);
  ReplaySettings replay = settings({});
  replay.targets.nodes = {{a.path(), b.path()}};
  replay.deal = Deal::kSession;
  Report report(column_names(replay.targets));
  ASSERT_TRUE(run_replay(replay, conversations(9), report));
  EXPECT_EQ(medians(report, a.path() + "," + b.path()).at("hit_tokens"), 9 * (128 + 256));
}

TEST(ReplayRunner, TooLittleSpaceIsToldBeforeAnythingIsWritten) {
  const TestDirectory a(kMemory);
  ReplaySettings replay = settings({a.path()});
  replay.engine.chunk_bytes = uint64_t{1} << 42;
  Report report(column_names(replay.targets));
  const Status done = run_replay(replay, conversations(), report);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kNoSpace) << done.error().message;
  EXPECT_NE(done.error().message.find("--requests"), std::string::npos) << done.error().message;
  EXPECT_TRUE(a.empty());
}

TEST(ReplayRunner, ChunkTokensThatDoNotFitAreRefused) {
  const TestDirectory a(kMemory);
  ReplaySettings replay = settings({a.path()});
  replay.engine.chunk_tokens = 48;
  Report report(column_names(replay.targets));
  const Status done = run_replay(replay, conversations(), report);
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("--chunk-tokens"), std::string::npos);
}

int run_command(std::vector<std::string> arguments) {
  CLI::App app;
  const Subcommand replay = add_replay_command(app);
  std::ranges::reverse(arguments);  // CLI11 takes them last first
  app.parse(arguments);
  return replay.run();
}

TEST(ReplayCommand, RunsATraceFileAndRefusesABrokenOne) {
  const TestDirectory a(kMemory);
  const TestDirectory files;
  std::ofstream(files.path() + "/good") << R"({"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]})"
                                        << "\n"
                                        << R"({"timestamp": 9, "input_length": 1024, "hash_ids": [1, 3]})"
                                        << "\n";
  std::ofstream(files.path() + "/bad") << R"({"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]})"
                                       << "\n{\n";
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_command({"replay", files.path() + "/good", "--dir", a.path(), "--bytes-per-token", "64",
                         "--keep-caches", "--json"}),
            kExitOk);
  const auto json = nlohmann::json::parse(::testing::internal::GetCapturedStdout(), nullptr, false);
  EXPECT_TRUE(json.is_array());
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_command({"replay", files.path() + "/bad", "--dir", a.path()}), kExitUsage);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("bad:2"), std::string::npos);
  EXPECT_TRUE(a.empty());
}

TEST(ReplayCommand, SaysWhatIsWrongWithNodes) {
  const TestDirectory a(kMemory), b(kMemory);
  const TestDirectory files;
  const std::string trace = files.path() + "/trace", both = a.path() + "," + b.path();
  std::ofstream(trace) << R"({"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]})" << "\n";
  const auto message = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"replay", trace, "--bytes-per-token", "64", "--keep-caches"});
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run_command(options), kExitUsage);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(message({}).find("no --dir given"), std::string::npos);
  EXPECT_NE(message({"--nodes", a.path()}).find("one directory only"), std::string::npos);
  EXPECT_NE(message({"--nodes", a.path() + "," + a.path()}).find("named twice"), std::string::npos);
  EXPECT_NE(message({"--nodes", both, "--nodes", both}).find("named twice"), std::string::npos);
  EXPECT_NE(message({"--nodes", both, "--deal", "session"}).find("--deal round-robin"), std::string::npos);
  EXPECT_NE(message({"--dir", a.path(), "--deal", "session"}).find("--nodes DIR,DIR"), std::string::npos);
  EXPECT_TRUE(a.empty() && b.empty());
}

}  // namespace replay_runner_test
}  // namespace kvcachefs
