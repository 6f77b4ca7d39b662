#include "store/evict/prefix_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "store/base/bytes.h"
#include "store/evict/reuse_model.h"
#include "store/evict/testing.h"

namespace kvcachefs::evict {
namespace prefix_policy_test {

struct PrefixTest : ::testing::Test, PolicyUnderTest {
  PrefixTest() : PolicyUnderTest("prefix") {}
  PrefixPolicy& prefix() { return static_cast<PrefixPolicy&>(*policy); }
  Node node(uint64_t number) { return *prefix().node_of(unit(number)); }
  int64_t ticks(double from, double to) { return static_cast<int64_t>((to - from) * 1000 / 16); }
};

TEST_F(PrefixTest, ALineGrowsAndCountsItsTurns) {
  request({1, 2});
  EXPECT_EQ(node(1).kind, NodeKind::kLine);
  EXPECT_EQ(node(1).turn, 1);
  EXPECT_EQ(node(1).fresh, 2);
  seconds += 10;
  request({1, 2, 3});
  EXPECT_EQ(node(3).turn, 2);
  EXPECT_EQ(node(3).fresh, 1);
  EXPECT_EQ(node(3).size, 3u);
  seconds += 10;
  request({1, 2, 3, 4, 5});
  EXPECT_EQ(node(1).turn, 3);
  EXPECT_EQ(node(1).fresh, 2);
  EXPECT_EQ(policy->counts().nodes, 1u);
}

TEST_F(PrefixTest, VisitsWithinASecondAreOne) {
  request({1, 2});
  seconds += 10;
  for (int i = 0; i < 5; ++i) {
    read(1);
    read(2);
    seconds += 0.2;
  }
  EXPECT_EQ(policy->counts().visits, 1u);
  EXPECT_EQ(node(1).turn, 2);
}

TEST_F(PrefixTest, ASplitKeepsTimesAndShares) {
  const double first = seconds;
  request({1, 2, 3, 4, 5, 6});
  seconds += 100;
  const double second = seconds;
  request({1, 2, 3, 4, 5, 6, 7});
  seconds += 100;
  const double third = seconds;
  request({1, 2, 13});  // a fork behind 2
  const Node trunk = node(1), rest = node(7), line = node(13);
  EXPECT_EQ(trunk.kind, NodeKind::kTrunk);
  EXPECT_EQ(trunk.size, 2u);
  EXPECT_EQ(trunk.children(), 2u);
  EXPECT_EQ(rest.kind, NodeKind::kLine);
  EXPECT_EQ(rest.size, 5u);
  EXPECT_EQ(line.size, 1u);
  // The trunk was visited now; the rest has the state before this visit.
  EXPECT_EQ(int32_t(trunk.visited - rest.visited), ticks(second, third));
  EXPECT_EQ(line.visited, trunk.visited);
  EXPECT_EQ(rest.turn, 2);
  EXPECT_EQ(rest.fresh, 1);
  EXPECT_EQ(rest.pause, TreePolicy::pause_class(100'000));
  EXPECT_EQ(node(13).turn, 1);
  (void)first;
  EXPECT_EQ(policy->check(), "");
}

TEST_F(PrefixTest, KnowsWhatManyRequestsBeginWith) {
  request({1, 2, 3, 4});
  EXPECT_FALSE(policy->forks_behind(unit(2)));
  request({1, 2, 11, 12});
  EXPECT_TRUE(policy->forks_behind(unit(2)));
  for (const uint64_t number : {1, 3, 4, 11, 12, 99}) EXPECT_FALSE(policy->forks_behind(unit(number))) << number;
  for (const uint64_t number : {21, 22, 23}) publish(number);
  for (const uint64_t number : {22, 23}) policy->relink(unit(number), unit(number - 1));  // a line whose links were found later
  for (const uint64_t number : {21, 22, 23}) EXPECT_FALSE(policy->forks_behind(unit(number))) << number;
}

TEST_F(PrefixTest, ASplitBehindAnyUnitKeepsBothHalves) {
  for (uint64_t at = 1; at < 12; ++at) {
    PolicyUnderTest test("prefix");
    std::vector<uint64_t> all;
    for (uint64_t number = 1; number <= 12; ++number) all.push_back(number);
    test.request(all);
    test.seconds += 50;
    std::vector<uint64_t> fork(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at));
    fork.push_back(100);
    test.request(fork);
    ASSERT_EQ(test.policy->check(), "");
    auto& prefix = static_cast<PrefixPolicy&>(*test.policy);
    EXPECT_EQ(prefix.node_of(unit(1))->size, at);
    EXPECT_EQ(prefix.node_of(unit(12))->size, 12 - at);
    EXPECT_EQ(prefix.node_of(unit(12))->turn, 1);
    EXPECT_EQ(prefix.node_of(unit(12))->fresh, 12 - at);
    for (uint64_t number = 2; number <= 12; ++number) EXPECT_EQ(test.policy->predecessor(unit(number)), unit(number - 1));
  }
}

TEST_F(PrefixTest, AGhostRevivesTurnAndLost) {
  std::vector<uint64_t> line;
  for (uint64_t number = 1; number <= 8; ++number) line.push_back(number);
  request(line);
  seconds += 20;
  line.push_back(9);
  request(line);
  seconds += 20;
  line.push_back(10);
  request(line);
  EXPECT_EQ(node(1).turn, 3);
  seconds += 60;
  EXPECT_EQ(evict_down_to(2), (std::vector<uint64_t>{10, 9, 8, 7, 6, 5, 4, 3}));
  EXPECT_TRUE(node(1).is(Node::kGhosted));
  uint64_t middle = 0;
  for (uint64_t number = 3; number <= 10; ++number)
    if (prefix().remembers(unit(number))) middle = number;
  EXPECT_GE(middle, 5u);
  EXPECT_LE(middle, 6u);
  seconds += 60;
  request(line);  // written again up to 10
  EXPECT_EQ(policy->counts().ghost_hits, 1u);
  const Node again = node(10);
  EXPECT_EQ(again.turn, 4);  // as if it had never been evicted
  EXPECT_EQ(again.fresh, 0);
  EXPECT_EQ(again.lost, 0);  // the lost units are written again, and are not new
  EXPECT_FALSE(again.is(Node::kGhosted));
  line.push_back(11);
  seconds += 60;
  request(line);
  EXPECT_EQ(node(11).fresh, 1);
}

TEST_F(PrefixTest, UnfullUnitsStandAloneAndGoFirst) {
  request({1, 2});
  publish_after(3, 2, false);
  EXPECT_EQ(node(3).kind, NodeKind::kUnfull);
  EXPECT_FALSE(policy->predecessor(unit(3)).valid());
  EXPECT_EQ(node(2).size, 2u);
  seconds += 5;
  std::vector<UnitKey> chosen;
  Ask ask;
  ask.now = now();
  EXPECT_EQ(choose(ask, chosen).reason, Reason::kUnfull);
  EXPECT_EQ(chosen, std::vector<UnitKey>{unit(3)});
  // And nothing hangs below an unfull unit.
  publish_after(4, 3);
  EXPECT_FALSE(policy->predecessor(unit(4)).valid());
}

TEST_F(PrefixTest, LearnsWhichLinesComeBack) {
  // Lines of three units come back after a minute, those of 40 never do.
  std::mt19937_64 random(1);
  uint64_t next = 0;
  std::vector<std::vector<uint64_t>> waiting;
  for (int round = 0; round < 400; ++round) {
    seconds += 30;
    std::vector<uint64_t> small, large;
    for (int i = 0; i < 3; ++i) small.push_back(next++);
    for (int i = 0; i < 40; ++i) large.push_back(next++);
    request(small);
    request(large);
    waiting.push_back(small);
    if (waiting.size() > 2) {
      request(waiting.front());
      waiting.erase(waiting.begin());
    }
    evict_down_to(60);
  }
  seconds += 1;
  size_t kept = 0;
  for (const auto& line : waiting) kept += policy->holds(unit(line[2])) ? 1 : 0;
  EXPECT_EQ(kept, waiting.size());
}

TEST_F(PrefixTest, RecencyAloneWhereLinksDoNotHold) {
  EXPECT_FALSE(policy->counts().by_recency);
  for (int i = 0; i < 2000; ++i) policy->link_checked(i % 3 != 0);
  EXPECT_TRUE(policy->counts().by_recency);
  for (uint64_t number = 0; number < 30; ++number) {
    seconds += 10;
    publish(number, number % 3 != 0);
  }
  std::vector<uint64_t> expected;
  for (uint64_t number = 0; number < 30; ++number) expected.push_back(number);
  EXPECT_EQ(evict_down_to(0), expected);
  for (int i = 0; i < 20000; ++i) policy->link_checked(true);
  EXPECT_FALSE(policy->counts().by_recency);
}

TEST_F(PrefixTest, StemsAreLearnedApart) {
  // Units of one model are read again, those of the other are not; they are alike otherwise.
  uint64_t next = 0;
  std::vector<uint64_t> waiting;
  const auto publish_of = [&](uint64_t stem) {
    policy->publish({unit(next), {}, {stem}, true}, now());
    return next++;
  };
  for (int round = 0; round < 3000; ++round) {
    seconds += 7;
    waiting.push_back(publish_of(1));
    publish_of(2);
    if (waiting.size() > 6) {
      const uint64_t again = waiting.front();
      waiting.erase(waiting.begin());
      if (policy->holds(unit(again))) {
        read(again);
      } else {
        policy->publish({unit(again), {}, {1}, true}, now());
      }
    }
    evict_down_to(10);
  }
  size_t kept = 0;
  for (const uint64_t number : waiting) kept += policy->holds(unit(number)) ? 1 : 0;
  EXPECT_GE(kept, waiting.size() - 1);
}

TEST_F(PrefixTest, TablesSurviveARestart) {
  uint64_t next = 0;
  std::vector<uint64_t> waiting;
  const auto round = [&](PolicyUnderTest& test) {
    test.seconds += 30;
    std::vector<uint64_t> small, large;
    small.push_back(next++);
    for (int i = 0; i < 40; ++i) large.push_back(next++);
    test.request(small);
    test.request(large);
    waiting.push_back(small[0]);
    if (waiting.size() > 3) {
      test.request({waiting.front()});
      waiting.erase(waiting.begin());
    }
    test.evict_down_to(50);
  };
  for (int i = 0; i < 500; ++i) round(*this);
  PolicyUnderTest restarted("prefix"), ignorant("prefix");
  ASSERT_TRUE(restarted.policy->restore(policy->save()));
  const auto fill = [](PolicyUnderTest& test) {
    test.seconds = 1e6;
    test.request({1});
    test.seconds += 5;
    std::vector<uint64_t> large;
    for (uint64_t i = 100; i < 140; ++i) large.push_back(i);
    test.request(large);
    test.seconds += 25;
    test.evict_down_to(20);
    return test.policy->holds(unit(1));
  };
  EXPECT_TRUE(fill(restarted));
  EXPECT_FALSE(fill(ignorant));
}

TEST_F(PrefixTest, MemoryStaysWithinItsShare) {
  std::mt19937_64 random(4);
  constexpr size_t kUnits = 100'000;
  uint64_t next = 0;
  // The worst shape: each unit a node of its own.
  while (policy->units() < kUnits) {
    seconds += 0.05;
    publish(next++);
  }
  for (size_t i = 0; i < kUnits; ++i) {
    seconds += 0.05;
    publish(next++);
    std::vector<UnitKey> chosen;
    Ask ask;
    ask.now = now();
    choose(ask, chosen);
    policy->evicted(chosen.at(0));
  }
  EXPECT_EQ(policy->units(), kUnits);
  constexpr size_t kFixed = size_t{512} << 10;  // empty tables
  EXPECT_LE(policy->counts().memory_bytes, kUnits * 64 + kFixed);
}

// A restart is no reason to remember less, however much was counted.
TEST(ReuseModelTables, ComeBackAsTheyWereSaved) {
  ReuseModel model;
  for (int i = 0; i < 6000; ++i) model.hit({}, 1000 * i);
  Bytes saved, again;
  ByteWriter writer(saved), writer_again(again);
  model.save(writer);
  ReuseModel restored;
  ByteReader reader(saved);
  ASSERT_TRUE(restored.restore(reader));
  restored.save(writer_again);
  EXPECT_EQ(again, saved);
}

}  // namespace prefix_policy_test
}  // namespace kvcachefs::evict
