// Several nodes on one simulated network volume. Seeds are fixed; KVCACHEFS_SEED=n runs that one, KVCACHEFS_STEPS=n makes n steps between two
// comparisons, KVCACHEFS_LONG=1 takes new seeds for 15 minutes.
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
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
  const uint64_t seeds = number_of("KVCACHEFS_SEEDS", std::getenv("KVCACHEFS_SEED") != nullptr ? 1 : many ? UINT64_MAX : 20);
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

}  // namespace nodes_test
}  // namespace kvcachefs::testing
