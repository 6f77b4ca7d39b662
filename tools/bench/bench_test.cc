// Every workload at a tiny scale on plain directories: what it reports, and that it leaves nothing behind.
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/bench/bench_command.h"
#include "tools/bench/bench_runner.h"
#include "tools/bench/conversation.h"
#include "tools/bench/presets.h"
#include "tools/bench/raw_io.h"
#include "tools/bench/restore_pass.h"
#include "tools/load/arena.h"
#include "tools/load/test_directory.h"
#include "tools/load/test_mount.h"

namespace kvcachefs {
namespace bench_test {

BenchSettings tiny(const std::string& workload) {
  BenchSettings settings;
  settings.workloads = {workload};
  settings.rounds = 2;
  settings.sizes = {16 * kKiB};
  settings.styles = {AccessStyle::kRead};
  settings.threads = {1, 2};
  settings.pass_bytes = 256 * kKiB;
  settings.pool_bytes = 64 * kMiB;
  settings.scale = 1e-5;
  settings.time_scale = 1e4;
  settings.seed = 1;
  settings.keep_caches = true;  // tests do not empty the page cache of the machine they run on
  return settings;
}

class BenchTest : public ::testing::Test {
 protected:
  explicit BenchTest(TestDirectory::On where = TestDirectory::On::kMemory) : a_(where), b_(where) {}

  // The metrics by (dir, name); checks what every report must hold.
  std::set<std::pair<std::string, std::string>> run(BenchSettings settings) {
    settings.targets.dirs = {a_.path(), b_.path()};
    Report report(column_names(settings.targets));
    const Status done = run_bench(settings, report);
    EXPECT_TRUE(done) << done.error().message;
    EXPECT_TRUE(a_.empty() && b_.empty());
    std::set<std::pair<std::string, std::string>> metrics;
    for (const auto& entry : nlohmann::json::parse(report.json())) {
      EXPECT_LE(entry["min"], entry["median"]) << entry;
      EXPECT_LE(entry["median"], entry["max"]) << entry;
      if (entry["workload"] == settings.workloads[0]) metrics.emplace(entry["dir"], entry["metric"]);
    }
    return metrics;
  }
  void expect_on_both(const std::set<std::pair<std::string, std::string>>& metrics, const std::string& name) {
    EXPECT_TRUE(metrics.contains({a_.path(), name}) && metrics.contains({b_.path(), name})) << name;
  }
  TestDirectory a_, b_;
};

// tmpfs takes O_DIRECT only from Linux 6.6 on.
class BenchOnDiskTest : public BenchTest {
 protected:
  BenchOnDiskTest() : BenchTest(TestDirectory::On::kDisk) {}
};

TEST_F(BenchOnDiskTest, RestoreInEveryStyle) {
  BenchSettings settings = tiny("restore");
  settings.styles = {AccessStyle::kRead, AccessStyle::kOdirect,    AccessStyle::kMmap,
                     AccessStyle::kVllm, AccessStyle::kLmcacheGds, AccessStyle::kSglang};
  const auto metrics = run(settings);
  for (const AccessStyle style : settings.styles) {
    const std::string name(access_style_name(style));
    expect_on_both(metrics, "16K/" + name + "/1t/cold_rate");
    expect_on_both(metrics, "16K/" + name + "/2t/warm_load_p99");
    expect_on_both(metrics, "16K/" + name + "/2t/warm_client_cpu");
  }
}

TEST_F(BenchTest, RestoreWithFewerBuffersThanChunks) {
  BenchSettings settings = tiny("restore");
  settings.hot_buffers = true;
  expect_on_both(run(settings), "16K/read/2t/warm_rate");
}

TEST_F(BenchTest, Store) {
  const auto metrics = run(tiny("store"));
  for (const char* name : {"return_rate", "durable_rate", "time_to_durable", "put_p99", "put_minus_copy_p50"}) {
    expect_on_both(metrics, std::string("16K/read/2t/") + name);
  }
}

TEST_F(BenchTest, LongContext) {
  const auto metrics = run(tiny("long-context"));
  expect_on_both(metrics, "256tokens/1560files-of-4K/read/cold_rate");
  expect_on_both(metrics, "2048tokens/192files-of-4K/read/warm_time");
}

TEST_F(BenchTest, Contexts) {
  const auto metrics = run(tiny("contexts"));
  expect_on_both(metrics, "10x5turns/4K/read/turn1_store");
  expect_on_both(metrics, "10x5turns/4K/read/turn5_restore");
  expect_on_both(metrics, "10x5turns/4K/read/turn5_read_rate");
}

TEST_F(BenchTest, ConversationsCountWholeFiles) {
  BenchSettings settings = tiny("multi-round");
  settings.styles = {AccessStyle::kRead, AccessStyle::kLmcacheGds};  // 4 KiB, and 4 KiB with as much before it
  settings.rounds = 1;
  settings.targets.dirs = {a_.path()};
  Report report(column_names(settings.targets));
  ASSERT_TRUE(run_bench(settings, report));
  std::map<std::string, double> values;
  for (const auto& entry : nlohmann::json::parse(report.json())) values[entry["metric"]] = entry["median"];
  // Two instances may store the same chunk: not exactly twice.
  EXPECT_GT(values["15users/20rounds/4K/lmcache-gds/written"], 1.5 * values["15users/20rounds/4K/read/written"]);
}

TEST_F(BenchOnDiskTest, ConversationsHaveARawLimit) {
  for (const auto& [workload, scene] : {std::pair{"contexts", "10x5turns/4K/read/"}, {"multi-round", "15users/20rounds/4K/read/"}}) {
    BenchSettings settings = tiny(workload);
    settings.rounds = 1;
    settings.raw_limit = true;
    const auto metrics = run(settings);
    expect_on_both(metrics, std::string(scene) + "raw_read_rate");
    expect_on_both(metrics, std::string(scene) + "raw_write_rate");
  }
}

TEST_F(BenchTest, MultiRound) {
  const auto metrics = run(tiny("multi-round"));
  expect_on_both(metrics, "15users/20rounds/4K/read/ttft_p99");
  expect_on_both(metrics, "15users/20rounds/4K/read/hit_ratio");
}

// Requests come so fast that it is chance which of them find the other node's chunks; what a node finds of its own chunks is not.
TEST_F(BenchTest, MultiRoundOnNodes) {
  const TestDirectory c(TestDirectory::On::kMemory);
  BenchSettings settings = tiny("multi-round");
  settings.rounds = 1;
  settings.targets.dirs = {c.path()};
  settings.targets.nodes = {{a_.path(), b_.path()}, {b_.path(), a_.path()}};
  Report report(column_names(settings.targets));
  const Status done = run_bench(settings, report);
  ASSERT_TRUE(done) << done.error().message;
  std::map<std::pair<std::string, std::string>, double> values;
  const std::string scene = "15users/20rounds/4K/read/";
  for (const auto& entry : nlohmann::json::parse(report.json())) {
    const std::string metric = entry["metric"];
    values[{entry["dir"], metric.substr(scene.size())}] = entry["median"];
  }
  const std::string first = a_.path() + "," + b_.path(), second = b_.path() + "," + a_.path();
  for (const std::string& nodes : {first, second}) {
    // A turn finds at least what the node stored two turns before: 18 turns of 15 users.
    const double hits = values.at({nodes, "hit_tokens"});
    EXPECT_EQ(hits, 15 * (18 * 2048 + 512 * 17 * 18 / 2));
    EXPECT_EQ(values.at({nodes, "node1/hit_tokens"}) + values.at({nodes, "node2/hit_tokens"}), hits);
    EXPECT_LE(hits, values.at({c.path(), "hit_tokens"}));
  }
  EXPECT_EQ(values.at({first, "hit_tokens_to_[3]"}), 1);
  EXPECT_GT(values.at({first, "ttft_p50_to_[3]"}), 0);
  EXPECT_FALSE(values.contains({second, "hit_tokens_to_[3]"}));
  EXPECT_TRUE(a_.empty() && b_.empty() && c.empty());
}

TEST_F(BenchTest, Probe) {
  const auto metrics = run(tiny("probe"));
  expect_on_both(metrics, "read/1t/present_rate");
  expect_on_both(metrics, "read/2t/absent_rate");
}

TEST_F(BenchTest, Scan) {
  const auto metrics = run(tiny("scan"));
  expect_on_both(metrics, "4sidecars/cold_rate");
  expect_on_both(metrics, "4sidecars/warm_time");
}

TEST_F(BenchOnDiskTest, Raw) {
  const auto metrics = run(tiny("raw"));
  expect_on_both(metrics, "1M/1M-depth-8/read_rate");
  expect_on_both(metrics, "1M/1M-depth-8/write_rate");
}

TEST_F(BenchTest, TooLittleSpaceIsToldBeforeAnythingIsWritten) {
  BenchSettings settings = tiny("long-context");
  settings.scale = 1e5;
  settings.targets.dirs = {a_.path()};
  Report report(column_names(settings.targets));
  const Status done = run_bench(settings, report);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kNoSpace);
  EXPECT_NE(done.error().message.find("--scale"), std::string::npos) << done.error().message;
  EXPECT_TRUE(a_.empty());
}

TEST(RawIo, AFileSystemWithoutODirectIsRefusedAndLeftAsItWas) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount ramfs("ramfs");
  const auto buffer = Arena::create(kMiB);
  EXPECT_FALSE(measure_raw(ramfs.path(), buffer->span().first(kMiB)));
  EXPECT_TRUE(ramfs.empty());
}

TEST(RestorePass, AWrongByteFailsThePass) {
  for (const size_t slots : {64u, 1u}) {
    const TestDirectory directory;
    const std::string root = directory.path() + "/";
    const PassSpec spec{AccessStyle::kRead, 16 * kKiB, 1};
    const std::vector<Chain> chains = {chunk_chain(spec.style, 5, 0, 8)};
    ASSERT_TRUE(store_chains(root, spec, chains));
    auto pool = SlotPool::create(spec.chunk_bytes, slots, 1, kMiB);
    ASSERT_TRUE(restore_pass(root, spec, chains, *pool));
    std::fstream file(root + chains[0][3].path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(7777);
    file.put('!');
    file.close();
    const auto pass = restore_pass(root, spec, chains, *pool);
    ASSERT_FALSE(pass) << slots;
    EXPECT_NE(pass.error().message.find(chains[0][3].path), std::string::npos) << pass.error().message;
  }
}

TEST(RestorePass, NoThreadOfABatchingStyleTakesAllThereIs) {
  EXPECT_EQ(chunks_claimed(AccessStyle::kSglang, 1000, 4), 128u);
  EXPECT_EQ(chunks_claimed(AccessStyle::kSglang, 28, 4), 7u);
  EXPECT_EQ(chunks_claimed(AccessStyle::kSglang, 29, 4), 8u);
  EXPECT_EQ(chunks_claimed(AccessStyle::kSglang, 100, 1), 100u);
  EXPECT_EQ(chunks_claimed(AccessStyle::kVllm, 1000, 4), 1u);
  EXPECT_EQ(chunks_claimed(AccessStyle::kRead, 1000, 4), 1u);
}

TEST(RestorePass, AMissingChunkIsNamed) {
  const TestDirectory directory;
  const PassSpec spec{AccessStyle::kVllm, 16 * kKiB, 2};
  const std::vector<Chain> chains = {chunk_chain(spec.style, 5, 0, 8)};
  ASSERT_TRUE(store_chains(directory.path() + "/", spec, chains));
  std::filesystem::remove(directory.path() + "/" + chains[0][7].path);
  auto pool = SlotPool::create(spec.chunk_bytes, 8, 2, kMiB);
  const auto pass = restore_pass(directory.path() + "/", spec, chains, *pool);
  ASSERT_FALSE(pass);
  EXPECT_NE(pass.error().message.find(chains[0][7].path), std::string::npos);
}

TEST(Conversation, EveryTurnExtendsTheOneBeforeOnAnotherInstance) {
  const ConversationShape shape{.conversations = 3, .turns = 4, .first_tokens = 512, .turn_tokens = 300};
  const auto requests = conversation_requests(shape, 9, 2, 2);
  ASSERT_EQ(requests.size(), 12u);
  for (size_t i = 3; i < requests.size(); ++i) {
    const EngineRequest &earlier = requests[i - 3], &later = requests[i];
    EXPECT_NE(earlier.engine, later.engine);
    ASSERT_LE(earlier.keys.size(), later.keys.size());
    EXPECT_TRUE(std::equal(earlier.keys.begin(), earlier.keys.end(), later.keys.begin()));
  }
  EXPECT_DOUBLE_EQ(requests[11].arrival_s, 5.5);
  EXPECT_EQ(conversation_chunks(shape), 3 * (1412 / kConversationChunkTokens));
}

TEST(Conversation, PrefillTakesItsTimeOnTheClockOfTheArrivals) {
  const EngineOptions engine = conversation_engine(tiny("multi-round"), AccessStyle::kVllm);
  EXPECT_FALSE(engine.sleep_prefill);
  const EngineOptions paced = paced_engine(engine, 10);
  EXPECT_TRUE(paced.sleep_prefill);
  EXPECT_DOUBLE_EQ(paced.prefill_tokens_per_s, 10 * engine.prefill_tokens_per_s);
  EXPECT_EQ(paced.chunk_bytes, engine.chunk_bytes);
}

int run_command(std::vector<std::string> arguments) {
  CLI::App app;
  const Subcommand bench = add_bench_command(app);
  std::ranges::reverse(arguments);  // CLI11 takes them last first
  app.parse(arguments);
  return bench.run();
}

TEST(BenchCommand, ReportsUsageErrors) {
  const TestDirectory directory;
  const std::string dir = "--dir=" + directory.path();
  EXPECT_EQ(run_command({"bench", "bogus", dir}), kExitUsage);
  EXPECT_EQ(run_command({"bench", "restore", dir, "--size=5000"}), kExitUsage);
  EXPECT_EQ(run_command({"bench", "restore", dir, "--style=tape"}), kExitUsage);
  EXPECT_EQ(run_command({"bench", "restore", dir + "/none"}), kExitFailed);
  EXPECT_EQ(run_command({"bench", "restore"}), kExitUsage);
  const TestDirectory other;
  const std::string nodes = "--nodes=" + directory.path() + "," + other.path();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_command({"bench", "multi-round", "--nodes=" + directory.path()}), kExitUsage);
  EXPECT_EQ(run_command({"bench", "multi-round", "restore", nodes}), kExitUsage);
  EXPECT_EQ(run_command({"bench", "multi-round", nodes, nodes}), kExitUsage);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("one directory only"), std::string::npos) << said;
  EXPECT_NE(said.find("--nodes says nothing to restore"), std::string::npos) << said;
  EXPECT_NE(said.find("named twice"), std::string::npos) << said;
  EXPECT_TRUE(directory.empty() && other.empty());
}

TEST(BenchCommand, AFailedCallOfADirectoryIsNoUsageError) {
  EXPECT_EQ(exit_code({Code::kInvalid, 0, "--size 5000"}), kExitUsage);
  EXPECT_EQ(exit_code({Code::kInvalid, EINVAL, "open"}), kExitFailed);
  EXPECT_EQ(exit_code({Code::kCanceled, 0, ""}), kExitInterrupted);
}

TEST(BenchCommand, OptionsThatAreNotHeededAreTold) {
  EXPECT_TRUE(ignored_options({"restore", "scan"}, {}).empty());
  EXPECT_TRUE(ignored_options({"restore", "store"}, {.size = true, .style = true, .threads = true}).empty());
  EXPECT_EQ(ignored_options({"restore", "raw", "scan"}, {.style = true, .threads = true}),
            (std::vector<std::string>{"--style says nothing to scan, raw", "--threads says nothing to scan, raw"}));
  EXPECT_EQ(ignored_options({"all"}, {.threads = true}),
            (std::vector<std::string>{"--threads says nothing to long-context, contexts, multi-round, scan, raw"}));
  const TestDirectory directory;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_command({"bench", "scan", "--dir", directory.path(), "--threads", "1", "--keep-caches", "--rounds", "1",
                         "--pass-bytes", "256K"}),
            kExitOk);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("--threads says nothing to scan"), std::string::npos);
}

TEST(BenchCommand, PrintsJson) {
  const TestDirectory directory;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_command({"bench", "restore", "--dir", directory.path(), "--size", "64K", "--threads", "1",
                         "--keep-caches", "--rounds", "1", "--pass-bytes", "256K", "--json"}),
            kExitOk);
  const auto json = nlohmann::json::parse(::testing::internal::GetCapturedStdout(), nullptr, false);
  ASSERT_TRUE(json.is_array());
  EXPECT_FALSE(json.empty());
}

}  // namespace bench_test
}  // namespace kvcachefs
