// For this room's tests: short ways to feed events to a policy.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "store/evict/policy.h"

namespace kvcachefs::evict {

inline UnitKey unit(uint64_t number) { return {number + 1}; }

// A policy with a clock in seconds.
struct PolicyUnderTest {
  explicit PolicyUnderTest(std::string_view name, uint64_t seed = 1) : policy(std::move(*make_policy(name, seed))) {}

  TimeMs now() const { return {static_cast<int64_t>(seconds * 1000)}; }
  void read(uint64_t number) { policy->read(unit(number), now()); }
  void publish(uint64_t number, bool full = true) { policy->publish({unit(number), {}, {}, full}, now()); }
  void publish_after(uint64_t number, uint64_t before, bool full = true) {
    policy->publish({unit(number), unit(before), {}, full}, now());
  }
  // A request for these units, in prefix order: reads the present ones, writes the rest.
  void request(const std::vector<uint64_t>& numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (policy->holds(unit(numbers[i]))) {
        read(numbers[i]);
      } else if (i == 0) {
        publish(numbers[i]);
      } else {
        publish_after(numbers[i], numbers[i - 1]);
      }
    }
  }
  // Evicts until `left` units are left; returns their numbers in order of eviction.
  std::vector<uint64_t> evict_down_to(size_t left) {
    std::vector<uint64_t> gone;
    while (policy->units() > left) {
      std::vector<UnitKey> chosen;
      Ask ask;
      ask.now = now();
      if (policy->choose(ask, chosen).reason == Reason::kBusy) continue;
      EXPECT_EQ(chosen.size(), 1u);
      if (chosen.empty()) break;
      policy->evicted(chosen[0]);
      gone.push_back(chosen[0].value - 1);
    }
    return gone;
  }
  Choice choose(const Ask& ask, std::vector<UnitKey>& chosen) {
    Choice choice;
    do choice = policy->choose(ask, chosen);
    while (choice.reason == Reason::kBusy);
    return choice;
  }

  std::unique_ptr<Policy> policy;
  double seconds = 1000;
};

}  // namespace kvcachefs::evict
