#include "store/evict/prefix_links.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/evict/testing.h"

namespace kvcachefs::evict {
namespace prefix_links_test {

struct PrefixLinksTest : ::testing::Test, PolicyUnderTest {
  PrefixLinksTest() : PolicyUnderTest("prefix") {}
  UnitKey see(uint64_t number, uint64_t stream, bool begins = false) {
    return links.see({unit(number), {stream}, false, begins}, now(), *policy);
  }
  void probe_all(uint64_t stream, std::initializer_list<uint64_t> numbers) {
    seconds += 10;
    for (const uint64_t number : numbers) see(number, stream);
  }
  PrefixLinks links;
};

TEST_F(PrefixLinksTest, FollowsTheOrderOfProbesOfEachStream) {
  EXPECT_FALSE(see(1, 1).valid());
  EXPECT_FALSE(see(101, 2).valid());
  EXPECT_EQ(see(2, 1), unit(1));
  EXPECT_EQ(see(102, 2), unit(101));
  EXPECT_EQ(see(3, 1), unit(2));
  seconds += 5;  // a pause: the next probes follow no known unit
  EXPECT_FALSE(see(4, 1).valid());
}

TEST_F(PrefixLinksTest, AWrongLinkIsDroppedAfterTwoContradictions) {
  probe_all(1, {9, 1});  // 1 begins a chain, but seemed to follow 9
  EXPECT_EQ(see(2, 1), unit(1));
  probe_all(1, {50, 1, 2});
  seconds += 100;
  EXPECT_FALSE(see(60, 1).valid());
  EXPECT_FALSE(see(1, 1).valid());
  EXPECT_EQ(see(2, 1), unit(1));
}

TEST_F(PrefixLinksTest, AConfirmedLinkStays) {
  probe_all(1, {1, 2, 3});
  for (uint64_t round = 0; round < 5; ++round) {
    probe_all(1, {100 + round, 2});
    probe_all(1, {1, 2, 3});
  }
  seconds += 10;
  see(1, 1);
  EXPECT_EQ(see(2, 1), unit(1));
}

TEST_F(PrefixLinksTest, MixedStreamsGuessNothing) {
  probe_all(1, {1, 2, 3});
  probe_all(1, {11, 12, 13});
  probe_all(1, {1, 11, 2, 12, 3, 13});
  EXPECT_FALSE(see(77, 1).valid());
  see(78, 1);
  EXPECT_FALSE(policy->predecessor(unit(78)).valid());
}

// The kernel itself answers most probes of units that many requests begin with.
TEST_F(PrefixLinksTest, AHeadWhoseProbesAreHiddenIsNoContradiction) {
  probe_all(1, {1, 2, 3});
  seconds += 10;
  see(1, 2);  // another thread asks for it just then
  for (uint64_t request = 0; request < 8; ++request) {
    seconds += 0.1;
    see(100 + 10 * request, 1);  // while this one is in the middle of another list
    EXPECT_EQ(see(2, 1), unit(1)) << request;
    EXPECT_EQ(see(3, 1), unit(2)) << request;
  }
}

// If lines are known to fork behind a unit, each of its probes is seen.
TEST_F(PrefixLinksTest, AWrongLinkToAHotHeadIsFoundOut) {
  request({1, 2});
  request({1, 3});
  ASSERT_TRUE(policy->forks_behind(unit(1)));
  probe_all(1, {1, 9});  // 9 begins a chain
  for (uint64_t request = 0; request < 3; ++request) {
    seconds += 2;
    see(1, 2);
    see(100 + request, 1);
    see(9, 1);
  }
  seconds += 10;
  EXPECT_FALSE(see(9, 1).valid());
}

TEST_F(PrefixLinksTest, ToGoBackOnceIsNotToMix) {
  probe_all(1, {1, 2, 3});
  probe_all(1, {11, 12, 13});
  probe_all(1, {1, 11, 12, 13, 2, 3});
  EXPECT_EQ(see(77, 1), unit(3));
}

// One thread makes one request right after the other, each with new names: nothing shows where one ends.
TEST_F(PrefixLinksTest, WhatWasNeverSeenIsNoEndlessChain) {
  size_t longest = 0, length = 0;
  for (uint64_t number = 0; number < 20'000; ++number) {
    length = see(number, 1).valid() ? length + 1 : 0;
    longest = std::max(longest, length);
    seconds += 0.001;
  }
  EXPECT_GT(longest, 1000u);
  EXPECT_LT(longest, 5000u);
}

TEST_F(PrefixLinksTest, TellsThePolicyOfWhatItFindsOut) {
  request({2});
  request({3});
  probe_all(1, {1, 2, 3});
  EXPECT_EQ(policy->predecessor(unit(3)), unit(2));
}

TEST_F(PrefixLinksTest, MemoryIsBounded) {
  PrefixLinks few(1000, 16);
  for (uint64_t number = 0; number < 20'000; ++number) {
    seconds += 0.1;
    few.see({unit(number), {number % 100}, false, true}, now(), *policy);
    ASSERT_LE(few.units(), 1001u);
  }
}

}  // namespace prefix_links_test
}  // namespace kvcachefs::evict
