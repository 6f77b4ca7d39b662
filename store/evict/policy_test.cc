// Properties of every policy, and of the policies that know prefixes.
#include "store/evict/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "store/evict/testing.h"

namespace kvcachefs::evict {
namespace policy_test {

TEST(MakePolicy, KnowsItsNamesAndRefusesOthers) {
  for (const std::string& name : policy_names()) EXPECT_EQ((*make_policy(name))->name(), name);
  const auto unknown = make_policy("mru");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalid);
  EXPECT_NE(unknown.error().message.find("\"mru\""), std::string::npos);
  EXPECT_NE(unknown.error().message.find("fifo-reinsert"), std::string::npos);
}

class EachPolicy : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, EachPolicy, ::testing::Values("prefix", "lru", "fifo-reinsert", "s3fifo"),
                         [](const auto& which) {
                           std::string name = which.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EachPolicy, HoldsWhatWasPublishedUntilItGoes) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2, 3});
  EXPECT_TRUE(test.policy->holds(unit(2)));
  test.policy->unlink(unit(3));
  EXPECT_FALSE(test.policy->holds(unit(3)));
  test.policy->evicted(unit(2));
  EXPECT_FALSE(test.policy->holds(unit(2)));
  EXPECT_EQ(test.policy->units(), 1u);
  // Calls for absent units have no effect.
  test.policy->unlink(unit(9));
  test.policy->evicted(unit(9));
  test.read(9);
  test.policy->relink(unit(9), unit(1));
  EXPECT_EQ(test.policy->units(), 1u);
}

// One client removes each chain except its end; another removes units that many chains begin with.
TEST_P(EachPolicy, WhatWasRemovedBeforeItsFollowersTakesNoMemoryForLong) {
  constexpr size_t kChains = 500, kUnits = 1000;
  PolicyUnderTest test(GetParam());
  uint64_t next = 0;
  for (size_t chain = 0; chain < kChains; ++chain) {
    std::vector<uint64_t> numbers(kUnits);
    for (uint64_t& number : numbers) number = next++;
    test.request(numbers);
    numbers.pop_back();
    for (const uint64_t number : numbers) test.policy->unlink(unit(number));
  }
  EXPECT_EQ(test.policy->units(), kChains);
  EXPECT_LT(test.policy->counts().memory_bytes, 64 * kChains + 512 * 1024);
  EXPECT_EQ(test.policy->check(), "");
  for (size_t trunk = 0; trunk < kChains; ++trunk) {
    std::vector<uint64_t> numbers(20);
    for (uint64_t& number : numbers) number = next++;
    for (int line = 0; line < 3; ++line) {
      std::vector<uint64_t> asked = numbers;
      asked.push_back(next++);
      test.request(asked);
    }
    for (const uint64_t number : numbers) test.policy->unlink(unit(number));
  }
  EXPECT_EQ(test.policy->units(), 4 * kChains);
  EXPECT_LT(test.policy->counts().memory_bytes, 64 * 4 * kChains + 512 * 1024);
  EXPECT_EQ(test.policy->check(), "");
  EXPECT_EQ(test.evict_down_to(0).size(), 4 * kChains);
  EXPECT_EQ(test.policy->check(), "");
}

TEST_P(EachPolicy, EmptyHasNothingToEvict) {
  PolicyUnderTest test(GetParam());
  std::vector<UnitKey> chosen;
  Ask ask;
  ask.now = test.now();
  EXPECT_EQ(test.choose(ask, chosen).reason, Reason::kNothing);
  EXPECT_TRUE(chosen.empty());
}

TEST_P(EachPolicy, NeverChoosesWhatIsHeld) {
  std::mt19937_64 random(5);
  PolicyUnderTest test(GetParam());
  for (uint64_t line = 0; line < 300; ++line) {
    test.seconds += 10;
    test.request({line * 10, line * 10 + 1, line * 10 + 2});
  }
  test.seconds += 1000;
  std::set<UnitKey> pinned;
  while (pinned.size() < 100) pinned.insert(unit(random() % 300 * 10 + random() % 3));
  const HeldBy held = [&](UnitKey key) { return pinned.contains(key) ? Hold::kPinned : Hold::kNone; };
  Ask ask;
  ask.now = test.now();
  ask.max_units = 2;
  ask.held = &held;
  for (;;) {
    std::vector<UnitKey> chosen;
    const Choice choice = test.choose(ask, chosen);
    if (chosen.empty()) {
      EXPECT_EQ(choice.reason, Reason::kNothing);
      break;
    }
    for (const UnitKey key : chosen) {
      ASSERT_FALSE(pinned.contains(key));
      test.policy->evicted(key);
    }
  }
  for (const UnitKey key : pinned) EXPECT_TRUE(test.policy->holds(key));
  EXPECT_GT(test.policy->counts().skipped_held, 0u);
  // Each unit that is left is held, or stands before a held one.
  EXPECT_LE(test.policy->units(), 3 * pinned.size());
}

// All units but one are held, and were checked a moment ago, when that one was held as well.
TEST_P(EachPolicy, FindsTheOneThatIsNotHeld) {
  PolicyUnderTest test(GetParam());
  constexpr uint64_t kUnits = 100;
  for (uint64_t number = 0; number < kUnits; ++number) test.publish(number);
  test.seconds += 10;
  for (uint64_t free = 0; free < kUnits; ++free) {
    bool all = true;
    const HeldBy held = [&](UnitKey key) { return all || key != unit(free) ? Hold::kOther : Hold::kNone; };
    Ask ask;
    ask.now = test.now();
    ask.held = &held;
    std::vector<UnitKey> chosen;
    EXPECT_EQ(test.choose(ask, chosen).reason, Reason::kNothing);
    EXPECT_TRUE(chosen.empty());
    all = false;
    test.choose(ask, chosen);
    EXPECT_EQ(chosen, std::vector<UnitKey>{unit(free)});
  }
}

TEST_P(EachPolicy, NeverChoosesWhatIsLeasedUnlessAskedTo) {
  PolicyUnderTest test(GetParam());
  for (uint64_t line = 0; line < 200; ++line) {
    test.seconds += 1;
    test.publish(line);
  }
  Ask ask;
  ask.now = test.now();
  ask.lease_ms = 50'000;
  std::vector<uint64_t> gone;
  for (;;) {
    std::vector<UnitKey> chosen;
    if (test.choose(ask, chosen).reason == Reason::kNothing) break;
    for (const UnitKey key : chosen) {
      test.policy->evicted(key);
      gone.push_back(key.value - 1);
    }
  }
  for (const uint64_t line : gone) EXPECT_LT(line, 150u);
  EXPECT_GE(gone.size(), 145u);
  ask.break_leases = true;
  std::vector<UnitKey> chosen;
  EXPECT_EQ(test.choose(ask, chosen).reason, Reason::kLeaseBroken);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_TRUE(test.policy->holds(chosen[0]));
}

TEST_P(EachPolicy, TheSameSeedGivesTheSameChoices) {
  const auto run = [&](uint64_t seed) {
    PolicyUnderTest test(GetParam(), seed);
    std::mt19937_64 random(3);
    std::vector<uint64_t> gone;
    for (int i = 0; i < 2000; ++i) {
      test.seconds += static_cast<double>(random() % 30);
      const uint64_t line = random() % 400;
      std::vector<uint64_t> numbers;
      for (uint64_t at = 0; at <= random() % 6; ++at) numbers.push_back(line * 100 + at);
      test.request(numbers);
      for (const uint64_t number : test.evict_down_to(300)) gone.push_back(number);
    }
    return gone;
  };
  const auto first = run(1);
  EXPECT_GT(first.size(), 500u);
  EXPECT_EQ(first, run(1));
}

TEST_P(EachPolicy, InvariantsHoldAfterEachRandomEvent) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    PolicyUnderTest test(GetParam(), seed);
    const uint64_t names = 20 + random() % 300;
    std::set<uint64_t> there;
    for (int step = 0; step < 1000; ++step) {
      test.seconds += static_cast<double>(random() % 4000) / 1000;
      const uint64_t number = random() % names, other = random() % names;
      switch (random() % 12) {
        case 0:
          test.policy->unlink(unit(number));
          there.erase(number);
          break;
        case 1: test.policy->relink(unit(number), random() % 5 == 0 ? UnitKey{} : unit(other)); break;
        case 2:
        case 3: test.read(number); break;
        case 4: test.policy->link_checked(random() % 3 != 0); break;
        case 5: {
          // Now and then the store evicts another unit than the chosen one.
          test.policy->evicted(unit(number));
          there.erase(number);
          break;
        }
        case 6: {
          std::vector<UnitKey> chosen;
          Ask ask;
          ask.now = test.now();
          ask.max_units = 1 + random() % 8;
          ask.lease_ms = random() % 3 == 0 ? 500 : 0;
          const uint64_t many = random() % 4;  // of four units, so many are held
          const HeldBy held = [&](UnitKey key) { return (key.value * 2654435761) % 4 < many ? Hold::kLeased : Hold::kNone; };
          ask.held = &held;
          if (random() % 4 == 0) test.policy->part_chains(ask);
          test.choose(ask, chosen);
          std::set<UnitKey> distinct(chosen.begin(), chosen.end());
          ASSERT_EQ(distinct.size(), chosen.size());
          for (const UnitKey key : chosen) {
            ASSERT_TRUE(test.policy->holds(key));
            ASSERT_EQ(held(key), Hold::kNone);
            test.policy->evicted(key);
            there.erase(key.value - 1);
            ASSERT_EQ(test.policy->check(), "");
          }
          break;
        }
        default: {
          uint64_t before = random() % 4 == 0 ? names : other;
          for (uint64_t at = 0; at <= random() % 9; ++at) {
            const uint64_t next = (number + at) % names;
            if (before == names) {
              test.publish(next, random() % 10 != 0);
            } else {
              test.publish_after(next, before, random() % 10 != 0);
            }
            there.insert(next);
            before = next;
          }
        }
      }
      ASSERT_EQ(test.policy->check(), "") << "seed " << seed << " step " << step;
      ASSERT_EQ(test.policy->units(), there.size());
    }
    for (uint64_t number = 0; number < names; ++number)
      ASSERT_EQ(test.policy->holds(unit(number)), there.contains(number));
  }
}

TEST_P(EachPolicy, SavesAndRestores) {
  PolicyUnderTest test(GetParam());
  for (uint64_t i = 0; i < 500; ++i) {
    test.seconds += 3;
    test.request({i % 50 * 4, i % 50 * 4 + 1, i % 50 * 4 + 2});
    test.evict_down_to(60);
  }
  const Bytes saved = test.policy->save();
  EXPECT_LT(saved.size(), 64u * 1024);
  PolicyUnderTest other(GetParam());
  ASSERT_TRUE(other.policy->restore(saved));
  const Bytes again = other.policy->save();
  if (GetParam() != "prefix") {
    EXPECT_EQ(again, saved);
  }
  PolicyUnderTest third(GetParam());
  ASSERT_TRUE(third.policy->restore(again));
  EXPECT_EQ(third.policy->save(), again);
}

TEST_P(EachPolicy, RefusesDamagedTablesAndStaysAsItWas) {
  PolicyUnderTest test(GetParam());
  for (uint64_t i = 0; i < 300; ++i) {
    test.seconds += 3;
    test.request({i % 50 * 4, i % 50 * 4 + 1});
    test.evict_down_to(60);
  }
  const Bytes saved = test.policy->save();
  PolicyUnderTest other(GetParam());
  const Bytes before = other.policy->save();
  for (size_t at = 0; at < saved.size(); at += 1 + at / 20) {
    Bytes damaged = saved;
    damaged[at] ^= std::byte{4};
    const Status restored = other.policy->restore(damaged);
    ASSERT_FALSE(restored) << at;
    EXPECT_TRUE(restored.error().code == Code::kCorrupt || restored.error().code == Code::kVersion);
    EXPECT_FALSE(other.policy->restore(ByteSpan(saved).first(at)));
  }
  EXPECT_FALSE(other.policy->restore({}));
  const std::string foreign = GetParam() == "lru" ? "prefix" : "lru";
  EXPECT_FALSE(other.policy->restore((*make_policy(foreign))->save()));
  EXPECT_EQ(other.policy->save(), before);
}

class TreePolicies : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Both, TreePolicies, ::testing::Values("prefix", "lru"), [](const auto& which) { return which.param; });

TEST_P(TreePolicies, NothingKnownMeansLeastRecentlyUsedAndTailsFirst) {
  PolicyUnderTest test(GetParam());
  for (uint64_t line = 0; line < 40; ++line) {
    test.seconds += 20;
    test.request({line * 10, line * 10 + 1, line * 10 + 2});
  }
  test.seconds += 20;
  std::vector<uint64_t> expected;
  for (uint64_t line = 0; line < 40; ++line)
    for (const uint64_t at : {2u, 1u, 0u}) expected.push_back(line * 10 + at);
  EXPECT_EQ(test.evict_down_to(0), expected);
}

TEST_P(TreePolicies, ATrunkOutlivesItsLines) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2, 3, 4});
  test.seconds += 100;
  test.request({1, 2, 13, 14});
  test.seconds += 100;
  test.request({1, 2, 23});
  test.seconds += 100;
  const auto gone = test.evict_down_to(0);
  ASSERT_EQ(gone.size(), 7u);
  EXPECT_EQ(gone[5], 2u);
  EXPECT_EQ(gone[6], 1u);
  const auto place = [&](uint64_t number) { return std::ranges::find(gone, number) - gone.begin(); };
  EXPECT_LT(place(4), place(3));
  EXPECT_LT(place(14), place(13));
}

TEST_P(TreePolicies, ChoosesUnitsOfOneChainTailFirst) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2, 3, 4, 5});
  test.seconds += 100;
  test.request({11, 12});
  Ask ask;
  ask.now = test.now();
  ask.max_units = 3;
  std::vector<UnitKey> chosen;
  test.choose(ask, chosen);
  EXPECT_EQ(chosen, (std::vector<UnitKey>{unit(5), unit(4), unit(3)}));
  const HeldBy held = [](UnitKey key) { return key == unit(4) ? Hold::kOpen : Hold::kNone; };
  ask.held = &held;
  chosen.clear();
  test.choose(ask, chosen);
  EXPECT_EQ(chosen, (std::vector<UnitKey>{unit(5)}));
}

// All ends are held: the units before them can be evicted once they are cut off, whatever their nodes; held units cannot.
TEST_P(TreePolicies, PartsWhatIsHeldFromWhatIsBeforeIt) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2, 3, 4, 5});
  test.request({11, 12});
  test.seconds += 100;
  test.request({21, 22, 23});
  test.request({21, 22, 33, 34});  // 21 and 22 are a trunk
  test.seconds += 100;
  const std::set<uint64_t> kept{4, 5, 11, 12, 23, 33, 34};
  const HeldBy held = [&](UnitKey key) { return kept.contains(key.value - 1) ? Hold::kLeased : Hold::kNone; };
  Ask ask;
  ask.now = test.now();
  ask.held = &held;
  std::vector<uint64_t> gone;
  for (int rounds = 0; rounds < 100; ++rounds) {
    std::vector<UnitKey> chosen;
    test.choose(ask, chosen);
    for (const UnitKey key : chosen) {
      test.policy->evicted(key);
      gone.push_back(key.value - 1);
    }
    EXPECT_EQ(test.policy->check(), "");
    if (chosen.empty() && !test.policy->part_chains(ask)) break;
  }
  EXPECT_EQ(std::set<uint64_t>(gone.begin(), gone.end()), (std::set<uint64_t>{1, 2, 3, 21, 22}));
  EXPECT_FALSE(test.policy->part_chains(ask)) << "all that is left is held";
  ask.held = nullptr;
  EXPECT_EQ(test.evict_down_to(0).size(), kept.size());
}

TEST_P(TreePolicies, WhatFollowsARemovedUnitStaysAndComesBackBehindIt) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2, 3, 4});
  test.policy->unlink(unit(2));
  EXPECT_FALSE(test.policy->holds(unit(2)));
  EXPECT_TRUE(test.policy->holds(unit(3)));
  EXPECT_FALSE(test.policy->predecessor(unit(3)).valid());
  test.seconds += 60;
  test.publish_after(2, 1);
  EXPECT_EQ(test.policy->predecessor(unit(3)), unit(2));
  EXPECT_EQ(test.evict_down_to(0), (std::vector<uint64_t>{4, 3, 2, 1}));
}

TEST_P(TreePolicies, RelinkPutsAUnitWhereItBelongs) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2});
  test.seconds += 50;
  test.request({3, 4});
  test.policy->relink(unit(3), unit(2));
  EXPECT_EQ(test.policy->predecessor(unit(3)), unit(2));
  test.policy->relink(unit(1), unit(4));  // a ring: refused
  EXPECT_FALSE(test.policy->predecessor(unit(1)).valid());
  test.policy->relink(unit(4), {});
  EXPECT_FALSE(test.policy->predecessor(unit(4)).valid());
  EXPECT_EQ(test.policy->check(), "");
  test.policy->relink(unit(3), unit(3));
  EXPECT_EQ(test.policy->check(), "");
}

TEST_P(TreePolicies, TellsWhatIsWorthLittleMoreThanWhatWent) {
  PolicyUnderTest test(GetParam());
  test.request({1, 2});
  test.seconds += 10;
  test.request({11, 12});
  test.seconds += 1000;
  test.request({21, 22});
  EXPECT_FALSE(test.policy->worth_little(unit(12), 2, test.now()));  // nothing was chosen yet
  EXPECT_EQ(test.evict_down_to(5), (std::vector<uint64_t>{2}));
  EXPECT_TRUE(test.policy->worth_little(unit(12), 2, test.now()));
  EXPECT_FALSE(test.policy->worth_little(unit(11), 1e6, test.now()));  // 12 follows it
  EXPECT_FALSE(test.policy->worth_little(unit(22), 2, test.now()));
  EXPECT_TRUE(test.policy->worth_little(unit(22), 1e6, test.now()));
  EXPECT_FALSE(test.policy->worth_little(unit(99), 1e6, test.now()));
}

TEST_P(TreePolicies, AClockThatStepsBackStandsStill) {
  PolicyUnderTest test(GetParam());
  test.request({1});
  test.seconds -= 900;
  test.request({2});
  test.seconds += 1000;
  test.request({3});
  EXPECT_EQ(test.evict_down_to(1).size(), 2u);
  EXPECT_TRUE(test.policy->holds(unit(3)));
}

TEST(LruPolicy, IsExactWithManyLeaves) {
  PolicyUnderTest test("lru");
  std::mt19937_64 random(9);
  std::vector<std::pair<double, uint64_t>> used;
  for (uint64_t line = 0; line < 2000; ++line) {
    test.seconds += 2;
    test.publish(line);
    used.emplace_back(test.seconds, line);
  }
  for (int i = 0; i < 3000; ++i) {
    test.seconds += 2;
    const uint64_t line = random() % 2000;
    test.read(line);
    used[line].first = test.seconds;
  }
  std::ranges::sort(used);
  std::vector<uint64_t> expected;
  for (const auto& [at, line] : used) expected.push_back(line);
  EXPECT_EQ(test.evict_down_to(0), expected);
}

TEST(FifoReinsert, WhatWasReadGetsAnotherRound) {
  PolicyUnderTest test("fifo-reinsert");
  for (const uint64_t number : {1u, 2u, 3u, 4u}) test.publish(number);
  test.read(1);
  test.read(3);
  EXPECT_EQ(test.evict_down_to(0), (std::vector<uint64_t>{2, 4, 1, 3}));
}

// More files that stay (pinned, open, not renamed yet) in the small queue, which is searched first, than one call examines.
TEST(S3Fifo, WhatIsHeldInOneQueueDoesNotHideTheOther) {
  PolicyUnderTest test("s3fifo");
  constexpr uint64_t kHeld = 6'000, kRead = 3'000;
  for (uint64_t number = 0; number < kHeld + kRead; ++number) test.publish(number);
  for (int i = 0; i < 3; ++i)
    for (uint64_t number = kHeld; number < kHeld + kRead; ++number) test.read(number);
  test.seconds += 10;
  const HeldBy held = [&](UnitKey key) {
    for (uint64_t number = kHeld; number < kHeld + kRead; ++number)
      if (key == unit(number)) return Hold::kNone;
    return Hold::kPinned;
  };
  std::vector<UnitKey> chosen;
  for (int call = 0; call < 64 && chosen.empty(); ++call) {
    Ask ask;
    ask.now = test.now();
    ask.held = &held;
    test.choose(ask, chosen);
  }
  EXPECT_EQ(chosen.size(), 1u);
}

TEST(S3Fifo, WhatIsReadOnceMoreOutlivesAScan) {
  PolicyUnderTest test("s3fifo");
  for (uint64_t number = 0; number < 10; ++number) test.publish(number);
  for (int i = 0; i < 3; ++i)
    for (uint64_t number = 0; number < 5; ++number) test.read(number);
  for (uint64_t number = 100; number < 300; ++number) {
    test.publish(number);
    test.evict_down_to(20);
  }
  for (uint64_t number = 0; number < 5; ++number) EXPECT_TRUE(test.policy->holds(unit(number))) << number;
  EXPECT_FALSE(test.policy->holds(unit(7)));
}

}  // namespace policy_test
}  // namespace kvcachefs::evict
