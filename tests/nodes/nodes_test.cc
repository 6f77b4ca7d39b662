// Several nodes on one simulated network volume. Seeds are fixed; KVCACHEFS_SEED=n runs that one, KVCACHEFS_STEPS=n makes n steps between two
// comparisons, KVCACHEFS_LONG=1 takes new seeds for 15 minutes.
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/nodes/planted.h"
#include "tests/nodes/simulation.h"

namespace kvcachefs::testing {
namespace nodes_test {

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::string run(Plan plan, std::map<std::string, uint64_t>* counts = nullptr) {
  plan.steps = static_cast<int>(number_of("KVCACHEFS_STEPS", static_cast<uint64_t>(plan.steps)));
  Simulation simulation(plan);
  std::string problem = simulation.run();
  if (counts != nullptr) {
    (*counts)["steps"] += simulation.steps();
    for (const auto& [what, count] : simulation.counts()) (*counts)[what] += count;
  }
  return problem.empty() ? problem : fmt::format("KVCACHEFS_SEED={} ({} nodes, v{}{}): {}", plan.seed, plan.nodes, plan.server.nfs_version,
                                                 plan.server.async ? ", async" : "", problem);
}

TEST(Nodes, ComeToOneTreeWhateverHappens) {
  if (std::getenv("KVCACHEFS_NODES_LOG") == nullptr) log::set_level(log::Level::kOff);
  const bool many = std::getenv("KVCACHEFS_LONG") != nullptr;
  const uint64_t first = number_of("KVCACHEFS_SEED", many ? static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) : 1);
  const uint64_t seeds = number_of("KVCACHEFS_SEEDS", std::getenv("KVCACHEFS_SEED") != nullptr ? 1 : many ? UINT64_MAX : std::getenv("KVCACHEFS_QUICK") != nullptr ? 3 : 10);
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(15);
  std::map<std::string, uint64_t> counts;
  uint64_t ran = 0;
  for (; ran < seeds && std::chrono::steady_clock::now() < end; ++ran) {
    const std::string problem = run(plan_of(first + ran), &counts);
    if (!problem.empty()) ADD_FAILURE() << problem;
    if (!problem.empty() && number_of("KVCACHEFS_GO_ON", 0) == 0) break;
  }
  std::string text = fmt::format("{} seeds from {}:", ran, first);
  for (const auto& [what, count] : counts) text += fmt::format(" {} {}", what, count);
  fmt::print("{}\n", text);
}

// What each of them would do wrong is seen within some seeds.
class NodesPlanted : public ::testing::TestWithParam<Planted> {};

TEST_P(NodesPlanted, IsFound) {
  log::set_level(log::Level::kOff);
  constexpr uint64_t kMostSeeds = 60;
  const auto hits = std::make_shared<uint64_t>(0);
  std::string problem;
  uint64_t seed = 1;
  for (; seed <= kMostSeeds && problem.empty(); ++seed) {
    Plan plan = plan_of(seed);
    plan.server = {.nfs_version = 4};
    plan.wrap = [&](unsigned, std::shared_ptr<Volume> volume) { return plant(GetParam(), std::move(volume), hits); };
    problem = run(plan);
  }
  EXPECT_FALSE(problem.empty()) << "not found in " << kMostSeeds << " seeds, planted " << *hits << " times";
  fmt::print("found in {} seeds, planted {} times: {}\n", seed - 1, *hits, problem);
}

INSTANTIATE_TEST_SUITE_P(, NodesPlanted, ::testing::ValuesIn(kAllPlanted), [](const auto& each) { return name_of(each.param); });

}  // namespace nodes_test
}  // namespace kvcachefs::testing
