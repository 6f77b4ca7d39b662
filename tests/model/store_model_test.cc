// Random operations on a store and on a reference, compared at every step. Seeds are fixed, so that a run repeats;
// KVCACHEFS_SEED=n runs that one, KVCACHEFS_LONG=1 takes new seeds for some minutes.
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/model/random_client.h"

namespace kvcachefs::testing {
namespace store_model_test {

int steps_per_verify() {
  const char* steps = std::getenv("KVCACHEFS_STEPS");
  return steps != nullptr ? std::atoi(steps) : 150;
}
constexpr int kVerifiesPerRound = 6;

// Every seed is one combination of options.
Setting setting_for(uint64_t seed) {
  Setting setting;
  StoreOptions& options = setting.options;
  options.memory_bytes = (seed % 3 == 0 ? 64 : 16) * kMiB;
  const uint64_t pack_below[] = {0, 64 * kKiB, kMiB, 512 * kMiB};
  options.pack_below_bytes = pack_below[seed % 4];
  options.inline_below_bytes = seed % 5 == 0 ? 4096 : 0;
  options.extent_bytes = (seed % 7 == 0 ? 1 : 16) * kMiB;
  const Durability durabilities[] = {Durability::kNone, Durability::kNone, Durability::kNone, Durability::kClose, Durability::kSync};
  options.durability = durabilities[seed % 5];
  options.flush_interval_ms = seed % 2 == 0 ? 1 : 200;
  options.prefetch = seed % 6 != 0;
  if (seed % 4 == 1) {
    setting.tight = true;
    options.evict = false;
    options.capacity_bytes = 32 * kMiB;
  } else if (seed % 4 == 2) {
    options.raw_above_bytes = kMiB;
  }
  return setting;
}

void run_round(uint64_t seed) {
  fmt::print("seed {}\n", seed);
  RandomClient client(seed, setting_for(seed));
  for (int verify = 0; verify < kVerifiesPerRound; ++verify) {
    for (int step = 0; step < steps_per_verify(); ++step)
      if (!client.step()) return;
    if (!client.verify()) return;
  }
  client.finish();
}

std::chrono::seconds duration() {
  if (std::getenv("KVCACHEFS_LONG") != nullptr) return std::chrono::seconds(900);
  if (std::getenv("KVCACHEFS_QUICK") != nullptr) return std::chrono::seconds(10);
  return std::chrono::seconds(40);
}

TEST(StoreModel, AnswersAsTheReferenceDoes) {
  if (const char* seed = std::getenv("KVCACHEFS_SEED")) return run_round(std::strtoull(seed, nullptr, 10));
  uint64_t seed = 1;
  if (std::getenv("KVCACHEFS_LONG") != nullptr)
    seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto end = std::chrono::steady_clock::now() + duration();
  uint64_t rounds = 0;
  for (; !HasFailure() && std::chrono::steady_clock::now() < end; ++rounds) run_round(seed + rounds);
  fmt::print("{} rounds of {} steps\n", rounds, steps_per_verify() * kVerifiesPerRound);
}

}  // namespace store_model_test
}  // namespace kvcachefs::testing
