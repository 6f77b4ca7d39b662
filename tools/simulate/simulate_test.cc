#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <random>

#include <nlohmann/json.hpp>

#include "tools/simulate/belady.h"
#include "tools/simulate/extent_model.h"
#include "tools/simulate/simulate_report.h"
#include "tools/simulate/simulator.h"
#include "tools/simulate/svg_plot.h"
#include "tools/simulate/workload.h"

namespace kvcachefs {
namespace simulate_test {

Workload workload_of(const std::vector<std::vector<uint32_t>>& requests, int64_t step_ms = 1000) {
  Workload workload;
  workload.name = "test";
  workload.unit_tokens = 16;
  for (const auto& units : requests) {
    SimRequest request;
    request.time_ms = static_cast<int64_t>(workload.requests.size()) * step_ms;
    request.first = workload.units.size();
    request.units = static_cast<uint32_t>(units.size());
    request.last_tokens = 16;
    workload.units.insert(workload.units.end(), units.begin(), units.end());
    workload.requests.push_back(request);
    for (const uint32_t unit : units) workload.distinct_units = std::max(workload.distinct_units, unit + 1);
  }
  return workload;
}

SimResult run(const Workload& workload, const std::string& policy, uint64_t capacity) {
  SimSettings settings;
  settings.policy = policy;
  settings.capacity_units = capacity;
  const auto result = simulate(workload, settings);
  EXPECT_TRUE(result) << result.error().message;
  return *result;
}

// The most prefix hits that any choice of held units can give, by trying all sets: dynamic programming over requests.
uint64_t best_possible(const Workload& workload, uint64_t capacity) {
  const uint32_t sets = 1u << workload.distinct_units;
  std::vector<int64_t> best(sets, -1);
  best[0] = 0;
  for (const SimRequest& request : workload.requests) {
    uint32_t asked = 0;
    for (const uint32_t unit : workload.of(request)) asked |= 1u << unit;
    std::vector<int64_t> next(sets, -1);
    for (uint32_t held = 0; held < sets; ++held) {
      if (best[held] < 0) continue;
      uint32_t hits = 0;
      for (const uint32_t unit : workload.of(request)) {
        if ((held >> unit & 1) == 0) break;
        ++hits;
      }
      const uint32_t choice = held | asked;
      for (uint32_t kept = choice;; kept = (kept - 1) & choice) {
        if (static_cast<uint64_t>(std::popcount(kept)) <= capacity) next[kept] = std::max(next[kept], best[held] + hits);
        if (kept == 0) break;
      }
    }
    best = std::move(next);
  }
  return static_cast<uint64_t>(*std::ranges::max_element(best));
}

TEST(Belady, IsTheBestOfAllChoicesOnSmallCases) {
  std::mt19937 generator(7);
  const auto random = [&] { return static_cast<uint32_t>(generator()); };
  for (int round = 0; round < 1500; ++round) {
    const uint32_t units = 4 + random() % 5;
    std::vector<int> parent(units, -1);
    for (uint32_t unit = 1; unit < units; ++unit) parent[unit] = random() % 4 != 0 ? static_cast<int>(random() % unit) : -1;
    std::vector<std::vector<uint32_t>> requests(4 + random() % 6);
    for (auto& request : requests) {
      for (int unit = static_cast<int>(random() % units); unit >= 0; unit = parent[static_cast<size_t>(unit)])
        request.insert(request.begin(), static_cast<uint32_t>(unit));
    }
    const Workload workload = workload_of(requests);
    const uint64_t capacity = 1 + random() % 4;
    EXPECT_EQ(run(workload, "min", capacity).prefix_hits, best_possible(workload, capacity)) << "round " << round;
  }
}

TEST(Simulate, CountsBlocksAndPrefixes) {
  // The second request misses its head: what it has behind it is a block hit and no prefix hit.
  const Workload workload = workload_of({{0, 1, 2}, {3}, {0, 1, 2}, {0, 1, 2, 4}});
  const SimResult result = run(workload, "lru", 100);
  EXPECT_EQ(result.units, 11u);
  EXPECT_EQ(result.unit_hits, 6u);
  EXPECT_EQ(result.prefix_hits, 6u);
  EXPECT_EQ(result.tokens, 11u * 16);
  EXPECT_EQ(result.hit_tokens, 6u * 16);
  const SimResult head_first = run(workload_of({{0, 1, 2}, {3}, {0, 1, 2}}), "fifo-reinsert", 3);
  EXPECT_EQ(head_first.unit_hits, 2u);
  EXPECT_EQ(head_first.prefix_hits, 0u);
  const SimResult tail_first = run(workload_of({{0, 1, 2}, {3}, {0, 1, 2}}), "lru", 3);
  EXPECT_EQ(tail_first.prefix_hits, 2u);
}

TEST(Simulate, ListLruLosesTheHeadOfWhatIsLongerThanItself) {
  const Workload workload = workload_of({{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}});
  EXPECT_EQ(run(workload, "lru-list", 4).prefix_hits, 0u);
  EXPECT_EQ(run(workload, "lru", 4).prefix_hits, 4u);
  EXPECT_EQ(run(workload, "lru-list", 5).prefix_hits, 5u);
}

// Conversations that go on with a chance that falls with the size of their last message, below a few shared heads.
Workload conversations(uint64_t seed, size_t requests) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  struct Line {
    std::vector<uint32_t> units;
    int64_t next_ms;
  };
  std::vector<Line> waiting;
  uint32_t next_unit = 0;
  std::vector<std::vector<uint32_t>> heads(4);
  for (auto& head : heads)
    for (uint64_t i = 0; i < 6; ++i) head.push_back(next_unit++);
  Workload workload;
  workload.name = "generated";
  workload.unit_tokens = 64;
  int64_t now_ms = 0;
  const auto add = [&](const std::vector<uint32_t>& units) {
    SimRequest request;
    request.time_ms = now_ms;
    request.first = workload.units.size();
    request.units = static_cast<uint32_t>(units.size());
    request.last_tokens = 64;
    workload.units.insert(workload.units.end(), units.begin(), units.end());
    workload.requests.push_back(request);
  };
  while (workload.requests.size() < requests) {
    now_ms += 300 + static_cast<int64_t>(below(900));
    Line line;
    const auto due = std::ranges::find_if(waiting, [&](const Line& each) { return each.next_ms <= now_ms; });
    if (due != waiting.end()) {
      line = std::move(*due);
      waiting.erase(due);
    } else {
      line.units = heads[below(4)];
    }
    const bool paste = below(3) == 0;
    const uint64_t message = paste ? 20 + below(40) : 1 + below(4);
    for (uint64_t i = 0; i < message; ++i) line.units.push_back(next_unit++);
    add(line.units);
    if (below(100) < (paste ? 5u : 75u)) {
      line.next_ms = now_ms + 20'000 + static_cast<int64_t>(below(120'000));
      waiting.push_back(std::move(line));
    }
  }
  // Numbers in the order of first use.
  std::map<uint32_t, uint32_t> numbers;
  for (uint32_t& unit : workload.units) unit = numbers.try_emplace(unit, static_cast<uint32_t>(numbers.size())).first->second;
  workload.distinct_units = static_cast<uint32_t>(numbers.size());
  return workload;
}

TEST(Simulate, PrefixBeatsLruOnConversationsAndMinBeatsAll) {
  const Workload workload = conversations(1, 6000);
  for (const double part : {0.01, 0.02}) {
    const auto capacity = static_cast<uint64_t>(part * workload.distinct_units);
    const double lru = run(workload, "lru", capacity).prefix_hit_ratio();
    const double prefix = run(workload, "prefix", capacity).prefix_hit_ratio();
    const double min = run(workload, "min", capacity).prefix_hit_ratio();
    EXPECT_GT(prefix, lru + 0.05) << part;
    EXPECT_GT(min, prefix) << part;
    for (const char* policy : {"fifo-reinsert", "s3fifo", "lru-list"})
      EXPECT_GT(prefix, run(workload, policy, capacity).prefix_hit_ratio()) << policy;
  }
}

TEST(Simulate, TheFiguresOfAGeneratedTraceStayAsTheyAre) {
  const Workload workload = conversations(1, 6000);
  const auto capacity = static_cast<uint64_t>(0.02 * workload.distinct_units);
  EXPECT_NEAR(run(workload, "lru-list", capacity).prefix_hit_ratio(), 0.3111, 0.0005);
  EXPECT_NEAR(run(workload, "lru", capacity).prefix_hit_ratio(), 0.3111, 0.0005);
  EXPECT_NEAR(run(workload, "min", capacity).prefix_hit_ratio(), 0.4010, 0.0005);
  // Floating point may differ between machines.
  EXPECT_NEAR(run(workload, "prefix", capacity).prefix_hit_ratio(), 0.380, 0.005);
}

TEST(Simulate, IsRepeatable) {
  const Workload workload = conversations(2, 2000);
  const uint64_t capacity = workload.distinct_units / 30;
  for (const char* policy : {"prefix", "lru", "s3fifo", "fifo-reinsert"})
    EXPECT_EQ(run(workload, policy, capacity).prefix_hits, run(workload, policy, capacity).prefix_hits) << policy;
}

TEST(Simulate, LearnsTheOrderOfChunks) {
  const Workload workload = conversations(3, 3000);
  SimSettings settings;
  settings.policy = "prefix";
  settings.capacity_units = workload.distinct_units / 50;
  const double known = simulate(workload, settings)->prefix_hit_ratio();
  settings.learn_links = true;
  const auto learned = simulate(workload, settings);
  EXPECT_LT(learned->wrong_links, 0.001);
  EXPECT_NEAR(learned->prefix_hit_ratio(), known, 0.01);
  settings.lost_boundaries = 0.1;
  settings.cut_requests = 0.1;
  EXPECT_GT(simulate(workload, settings)->prefix_hit_ratio(), known - 0.03);
  // Requests mixed in one thread: links cannot be known, and recency is all that is left.
  settings = {};
  settings.policy = "prefix";
  settings.capacity_units = workload.distinct_units / 50;
  settings.learn_links = true;
  settings.interleave = 4;
  EXPECT_TRUE(simulate(workload, settings)->by_recency);
}

TEST(Simulate, ARestartWithTablesLosesLittle) {
  const Workload workload = conversations(4, 6000);
  SimSettings settings;
  settings.policy = "prefix";
  settings.capacity_units = workload.distinct_units / 50;
  settings.skip = 0.5;
  const double never = simulate(workload, settings)->prefix_hit_ratio();
  const auto with = [&](Restart restart) {
    settings.restart = restart;
    return simulate(workload, settings)->prefix_hit_ratio();
  };
  EXPECT_GT(with(Restart::kTables), never - 0.015);
  EXPECT_GT(with(Restart::kTables), with(Restart::kLost));
}

TEST(Simulate, AScanDoesNotFlushWhatIsUsed) {
  const Workload workload = conversations(5, 6000);
  const uint64_t capacity = workload.distinct_units / 50;
  const Workload scanned = with_scan(workload, capacity * 10);
  SimSettings settings;
  settings.capacity_units = capacity;
  settings.skip = 0.5;
  settings.count_source = 0;
  const auto loss = [&](const std::string& policy) {
    settings.policy = policy;
    return simulate(workload, settings)->prefix_hit_ratio() - simulate(scanned, settings)->prefix_hit_ratio();
  };
  EXPECT_LT(loss("prefix"), 0.7 * loss("lru"));
}

TEST(Simulate, CompactionThatGivesUpWhatIsWorthLittleRewritesLess) {
  const Workload workload = conversations(6, 4000);
  SimSettings settings;
  settings.policy = "prefix";
  settings.capacity_units = workload.distinct_units / 20;
  settings.extents.on = true;
  settings.extents.bytes_per_token = 64;
  const auto moves_all = simulate(workload, settings);
  settings.extents.give_up = 4;
  const auto gives_up = simulate(workload, settings);
  ASSERT_TRUE(moves_all && gives_up);
  EXPECT_LT(2 * gives_up->extents.rewritten_bytes, moves_all->extents.rewritten_bytes);
  EXPECT_NEAR(gives_up->prefix_hit_ratio(), moves_all->prefix_hit_ratio(), 0.02);
  settings.extents.punch = true;
  EXPECT_EQ(simulate(workload, settings)->extents.rewritten_bytes, 0u);
}

TEST(Workload, KeepsTheUnfinishedChunkWhereTheTraceHasABlockForIt) {
  Trace trace;
  trace.block_tokens = 512;
  trace.requests.push_back({0, 1100, 0, {1, 2, 3}});
  trace.requests.push_back({5, 1100, 0, {1, 2}});
  const auto workload = make_workload(trace, "t", {});
  ASSERT_TRUE(workload);
  ASSERT_EQ(workload->requests.size(), 2u);
  EXPECT_EQ(workload->requests[0].units, 3u);
  EXPECT_EQ(workload->requests[0].last_tokens, 76u);
  EXPECT_EQ(workload->tokens(workload->requests[0]), 1100u);
  EXPECT_EQ(workload->requests[1].units, 2u);
  EXPECT_EQ(workload->requests[1].time_ms, 5000);
  EXPECT_EQ(workload->distinct_units, 3u);
  WorkloadSettings small;
  small.chunk_tokens = 256;
  const auto halves = make_workload(trace, "t", small);
  EXPECT_EQ(halves->requests[0].units, 5u);
  EXPECT_EQ(halves->requests[0].last_tokens, 76u);
  small.chunk_tokens = 300;
  EXPECT_FALSE(make_workload(trace, "t", small));
}

TEST(Workload, SpreadsTheStartsOfSessions) {
  Trace trace;
  trace.block_tokens = 64;
  for (uint32_t session = 1; session <= 50; ++session)
    for (int i = 0; i < 3; ++i) trace.requests.push_back({100.0 * i, 64, session, {session * 10}});
  WorkloadSettings settings;
  const auto workload = make_workload(trace, "t", settings);
  ASSERT_TRUE(workload);
  std::map<uint32_t, std::vector<int64_t>> times;
  for (const SimRequest& request : workload->requests) times[workload->of(request)[0]].push_back(request.time_ms);
  EXPECT_EQ(workload->requests[0].time_ms, 0);
  EXPECT_GT(workload->requests.back().time_ms, 10'000'000);
  for (const auto& [unit, of_session] : times) {
    ASSERT_EQ(of_session.size(), 3u);
    EXPECT_NEAR(static_cast<double>(of_session[2] - of_session[0]), 200'000, 2);
  }
  EXPECT_EQ(make_workload(trace, "t", settings)->requests[7].time_ms, workload->requests[7].time_ms);
  settings.seed = 2;
  EXPECT_NE(make_workload(trace, "t", settings)->requests[7].time_ms, workload->requests[7].time_ms);
  settings.session_spread_s = 0;
  EXPECT_EQ(make_workload(trace, "t", settings)->requests.back().time_ms, 200'000);
}

TEST(Workload, JoinsBesideAndAfter) {
  const Workload parts[] = {workload_of({{0, 1}, {0, 1, 2}}, 5000), workload_of({{0}, {0, 1}}, 5000)};
  const auto beside = join(parts, Join::kBeside);
  ASSERT_TRUE(beside);
  EXPECT_EQ(beside->distinct_units, 5u);
  EXPECT_EQ(beside->requests[1].source, 1u);
  EXPECT_EQ(beside->requests[1].time_ms, 0);
  const auto after = join(parts, Join::kAfter);
  EXPECT_EQ(after->requests[2].time_ms, 6000);
  EXPECT_EQ(after->requests[2].source, 1u);
  Workload other = parts[0];
  other.unit_tokens = 32;
  const Workload unequal[] = {parts[0], other};
  EXPECT_FALSE(join(unequal, Join::kAfter));
}

TEST(ExtentModel, PunchingRewritesNothingAndCompactionLittle) {
  ExtentSettings settings;
  settings.on = true;
  settings.extent_bytes = 64 * 4096;
  constexpr uint32_t kUnits = 4000, kHeld = 1000;
  const auto churn = [&](bool punch, bool in_order) {
    settings.punch = punch;
    ExtentModel model(settings, kUnits, kHeld * 4096);
    std::mt19937 random(1);
    std::vector<uint32_t> held;
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      if (held.size() == kHeld) {
        const size_t which = in_order ? 0 : random() % held.size();
        model.evict(held[which]);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      }
      model.write(unit, 4000);
      held.push_back(unit);
    }
    return model.counts();
  };
  EXPECT_EQ(churn(true, false).rewritten_bytes, 0u);
  EXPECT_EQ(churn(true, false).written_bytes, uint64_t{kUnits} * 4096);
  EXPECT_EQ(churn(false, true).write_amplification(), 1);
  const double random_victims = churn(false, false).write_amplification();
  EXPECT_GT(random_victims, 1.5);
  EXPECT_LT(random_victims, 15);
}

TEST(ExtentModel, CountsTheRangesOfARestore) {
  ExtentSettings settings;
  settings.on = true;
  ExtentModel model(settings, 10, 10 << 20);
  for (const uint32_t unit : {0u, 1u, 5u, 2u, 3u}) model.write(unit, 4096);
  const uint32_t units[] = {0, 1, 2, 3};
  model.restore(units);
  EXPECT_EQ(model.counts().restored_ranges, 2u);
  EXPECT_EQ(model.counts().units_per_range(), 2);
}

TEST(Report, JsonHasTheFields) {
  SimRow row{"a.jsonl", "prefix", 512, 1000, 0.1, {}};
  row.result.units = 200;
  row.result.unit_hits = 60;
  row.result.prefix_hits = 50;
  const auto json = nlohmann::json::parse(simulation_json({row}));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["policy"], "prefix");
  EXPECT_EQ(json[0]["capacity_tokens"], 512000);
  EXPECT_DOUBLE_EQ(json[0]["hit_ratio"], 0.3);
  EXPECT_DOUBLE_EQ(json[0]["prefix_hit_ratio"], 0.25);
  EXPECT_NE(simulation_table({row}).find("25.00"), std::string::npos);
}

TEST(SvgPlot, DrawsEachLineWithItsNameAndEscapesText) {
  const std::string svg =
      svg_plot({{"a < b & c", "tokens", "%", {{"lru", {{1e6, 10}, {1e7, 30}}}, {"prefix", {{1e6, 12}, {1e7, 31}}}}},
                {"one point", "tokens", "%", {{"lru", {{5e5, 0}}}}}});
  EXPECT_TRUE(svg.starts_with("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find(">prefix</text>"), std::string::npos);
  EXPECT_NE(svg.find(">10M</text>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 3u);
}

}  // namespace simulate_test
}  // namespace kvcachefs
