#include "store/upkeep/evictor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "store/base/units.h"
#include "store/index/index.h"

namespace kvcachefs {
namespace evictor_test {

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kChunk = 64 * kKiB;

std::string chunk_name(uint64_t number) { return fmt::format("{:016x}{:016x}.bin", number * 0x9E3779B97F4A7C15, number); }

class EvictorTest : public ::testing::Test {
 protected:
  explicit EvictorTest(std::string policy = "lru") { start(std::move(policy)); }
  void start(std::string policy, uint64_t most_pinned = UINT64_MAX, int64_t lease_ms = 5'000) {
    evictor_.configure({.on = true, .lease_ms = lease_ms, .policy = std::move(policy), .most_pinned_bytes = most_pinned});
  }
  void fill() {
    evictor_.found_directory({}, {}, kRootId, false);
    const uint64_t number = evictor_.filling();
    while (!evictor_.build(number)) {
    }
  }
  void pass(int64_t ns) { clock_.advance_ns(ns); }
  static ObjectId id_of(uint64_t number) { return ObjectId::make(0, 1, 100 + number); }
  // Stores a chunk like a client: probe, create a temporary name, rename.
  void store(uint64_t number, ObjectId directory = kRootId) {
    evictor_.probed(1, directory, chunk_name(number), {}, 0);
    evictor_.created(directory, chunk_name(number) + ".tmp1", id_of(number));
    evictor_.published(1, directory, chunk_name(number), id_of(number), kChunk);
  }
  // Removes the chosen victims, like the store.
  std::vector<uint64_t> evict(size_t units, Evictor::Leases leases = Evictor::Leases::kKeep) {
    std::vector<uint64_t> numbers;
    for (size_t i = 0; i < units; ++i) {
      const auto victims = evictor_.choose(1, 1, leases);
      if (victims.empty()) break;
      for (const Evictor::Member& member : victims[0].members) {
        numbers.push_back(member.id.number() - 100);
        evictor_.deleted(member.id);
      }
      evictor_.evicted(victims[0], victims[0].members.size(), victims[0].bytes);
    }
    EXPECT_EQ(evictor_.check(), "");
    return numbers;
  }

  ManualClock clock_{1'000 * kSecond};
  Evictor evictor_{clock_};
};
using Numbers = std::vector<uint64_t>;

uint64_t sum_of(const std::array<uint64_t, 24>& by_age) {
  uint64_t sum = 0;
  for (const uint64_t each : by_age) sum += each;
  return sum;
}

TEST_F(EvictorTest, AFileThatKeepsItsTemporaryNameIsEvictedLikeAnotherAndItsLateRenameCounts) {
  fill();
  for (const uint64_t number : {1, 2}) evictor_.created(kRootId, chunk_name(number) + ".tmp1", id_of(number));
  evictor_.written(id_of(1), kChunk);
  pass(20 * kSecond);
  store(3);  // the others count as published from here on
  EXPECT_EQ(evictor_.check(), "");
  evictor_.published(1, kRootId, chunk_name(1), id_of(1), kChunk);
  EXPECT_EQ(evictor_.check(), "");
  EXPECT_EQ(evictor_.counts().objects, 3u);
  pass(20 * kSecond);
  EXPECT_EQ(evict(1), Numbers{2});
  EXPECT_EQ(evictor_.counts().units, 2u) << "the unit of the temporary name has gone";
}

class NameThatLooksTemporary : public EvictorTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Probed, NameThatLooksTemporary, ::testing::Bool());
TEST_P(NameThatLooksTemporary, IsOfTheUnitOfItsHashOnceItIsNotRenamed) {
  const bool probed = GetParam();
  fill();
  const std::string body = chunk_name(1) + ".part";
  evictor_.created(kRootId, body, id_of(1));
  evictor_.created(kRootId, body + ".metadata", id_of(2));
  evictor_.written(id_of(1), kChunk);
  if (probed) {
    evictor_.probed(1, kRootId, body, id_of(1), kChunk);
    evictor_.probed(1, kRootId, body + ".metadata", id_of(2), 100);
  }
  pass(20 * kSecond);
  store(3);  // what was created long ago counts as published from here on
  EXPECT_EQ(evictor_.check(), "");
  const auto victims = evictor_.choose(1, 1, Evictor::Leases::kKeep);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].members.size(), 2u);
}

// One of its names was removed, and it was the one that was known.
TEST_F(EvictorTest, AFileThatLivesUnderANameNotKnownIsLookedForAndEvicted) {
  fill();
  for (const uint64_t number : {1, 2, 3}) store(number);
  EXPECT_FALSE(evictor_.search_for_lost()) << "nothing is lost";
  evictor_.nameless(id_of(1), /*lives=*/false);
  EXPECT_FALSE(evictor_.search_for_lost()) << "it is gone";
  evictor_.nameless(id_of(2), /*lives=*/true);
  pass(20 * kSecond);
  EXPECT_EQ(evict(10), Numbers{3});
  ASSERT_TRUE(evictor_.search_for_lost());
  const uint64_t number = evictor_.filling();
  ASSERT_NE(number, 0u);
  const std::string other = "another-" + chunk_name(2);
  evictor_.found_directory({}, {}, kRootId, false);
  evictor_.found({.parent = kRootId, .id = id_of(2), .name = other, .size_bytes = kChunk, .used_ns = clock_.realtime_ns(), .follows = {}});
  while (!evictor_.build(number)) {
  }
  EXPECT_EQ(evictor_.filling(), 0u);
  pass(20 * kSecond);
  EXPECT_EQ(evict(10), Numbers{2});
  evictor_.nameless(id_of(2), /*lives=*/true);
  EXPECT_FALSE(evictor_.search_for_lost()) << "not twice a minute";
  pass(60 * kSecond);
  EXPECT_TRUE(evictor_.search_for_lost());
}

TEST_F(EvictorTest, OthersAreToldOfWhatMayGo) {
  fill();
  for (uint64_t number = 1; number <= 4; ++number) store(number);
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 4 * kChunk) << "what was only written goes after seconds";
  pass(3 * kSecond);
  evictor_.opened(id_of(1), kChunk);
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 3 * kChunk + kChunk / 16) << "not to be counted on, but worth a wait";
  pass(3 * kSecond);
  evictor_.opened(id_of(2), kChunk);
  pass(7 * kSecond);
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 4 * kChunk);
}

// Others refuse calls at once if they are told that there is nothing.
TEST_F(EvictorTest, OthersAreToldThatSomethingMayGoBeforeItIsKnownHowMuch) {
  EXPECT_GT(sum_of(evictor_.bytes_by_age()), 0u) << "while filling";
  fill();
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 0u) << "nothing is stored";
  evictor_.created(kRootId, "in-place", id_of(1));
  EXPECT_GT(sum_of(evictor_.bytes_by_age()), 0u) << "its size is told at its close";
  evictor_.written(id_of(1), kChunk);
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), kChunk / 16) << "it may be renamed soon";
  EXPECT_EQ(evict(1, Evictor::Leases::kBreak), Numbers{1});
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 0u);
  store(2);
  ASSERT_TRUE(evictor_.pin(id_of(2), false, true));
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 0u) << "all is pinned";
  evictor_.configure({.on = false, .lease_ms = 0, .policy = "lru", .most_pinned_bytes = 0});
  EXPECT_EQ(sum_of(evictor_.bytes_by_age()), 0u) << "nothing is evicted here";
}

// For a second the kernel answers the probes of a name itself: not for a name behind which lines fork.
TEST_F(EvictorTest, EachProbeOfWhatManyRequestsBeginWithIsToBeSeen) {
  fill();
  store(1);
  store(2);
  EXPECT_FALSE(evictor_.will_be_told(id_of(1), 9));
  pass(5 * kSecond);
  evictor_.probed(1, kRootId, chunk_name(1), id_of(1), kChunk);
  store(3);
  EXPECT_TRUE(evictor_.will_be_told(id_of(1), 9));
  EXPECT_FALSE(evictor_.will_be_told(id_of(2), 9));
  EXPECT_FALSE(evictor_.will_be_told(id_of(3), 9));
}

TEST_F(EvictorTest, WhatWasOnlyListedIsTheFirstLeaseToBeBroken) {
  using enum Evictor::Leases;
  fill();
  for (uint64_t number = 1; number <= 5; ++number) store(number);
  pass(7 * kSecond);  // written chunks are no longer leased
  evictor_.will_be_told(id_of(1), 9);
  const std::vector<ObjectId> listed = {id_of(1), id_of(2), id_of(3), id_of(4)};
  evictor_.will_be_listed(listed);
  EXPECT_EQ(evict(9), Numbers{5});
  evictor_.opened(id_of(4), kChunk);
  EXPECT_EQ(evict(9, kListed), (Numbers{3, 2})) << "neither what was probed before nor what was opened since";
  EXPECT_EQ(evict(9, kSettled), Numbers{});
  EXPECT_EQ(evictor_.counts().broken_leases, 0u);
  pass(4 * kSecond);
  evictor_.will_be_listed(listed);  // a listing does not lengthen the lease of a use
  pass(3 * kSecond);
  EXPECT_EQ(evict(9), Numbers{}) << "still listed";
  EXPECT_EQ(evict(9, kListed), (Numbers{1, 4}));
  store(6);
  pass(7 * kSecond);
  const ObjectId six = id_of(6);
  evictor_.will_be_listed({&six, 1});
  pass(7 * kSecond);
  EXPECT_EQ(evict(9), Numbers{6}) << "it ends as others do";
}

TEST_F(EvictorTest, WhatWasUsedLongestAgoGoesFirst) {
  fill();
  for (uint64_t i = 0; i < 4; ++i) {
    store(i);
    pass(30 * kSecond);
  }
  evictor_.opened(id_of(0), kChunk);
  pass(30 * kSecond);
  EXPECT_EQ(evict(2), (Numbers{1, 2}));
  EXPECT_EQ(evictor_.counts().evicted_objects, 2u);
  EXPECT_EQ(evictor_.counts().evicted_bytes, 2 * kChunk);
  EXPECT_EQ(evict(9), (Numbers{3, 0}));
}

TEST_F(EvictorTest, WhatIsWrittenUnderItsNameHasASizeOnceItIsOnTheVolume) {
  fill();
  for (uint64_t i = 0; i < 8; ++i) {
    evictor_.created(kRootId, chunk_name(i), id_of(i));
    evictor_.sized(id_of(i), kChunk);
    pass(30 * kSecond);
  }
  const auto victims = evictor_.choose(2 * kChunk, 64, Evictor::Leases::kKeep);
  EXPECT_EQ(victims.size(), 2u);
  for (const Evictor::Victim& victim : victims) evictor_.refused(victim, Evictor::Refused::kNotNeeded);
  EXPECT_EQ(evictor_.choose(2 * kChunk, 64, Evictor::Leases::kKeep).size(), 2u) << "they may be chosen at once again";
  EXPECT_EQ(evictor_.counts().refused, 0u);
}

TEST_F(EvictorTest, ChainsGoFromTheirTail) {
  fill();
  for (uint64_t i = 0; i < 4; ++i) store(i);  // one prompt
  pass(60 * kSecond);
  EXPECT_EQ(evict(4), (Numbers{3, 2, 1, 0}));
}

TEST_F(EvictorTest, WhatWasProbedIsLeased) {
  fill();
  store(0);
  pass(60 * kSecond);
  store(1);
  pass(60 * kSecond);
  evictor_.probed(2, kRootId, chunk_name(0), id_of(0), kChunk);
  evictor_.probed(3, kRootId, chunk_name(1), id_of(1), kChunk);
  EXPECT_EQ(evict(1), Numbers{});
  pass(5 * kSecond);
  EXPECT_EQ(evict(1), Numbers{}) << "the kernel may have answered probes for a second since";
  pass(2 * kSecond);
  EXPECT_EQ(evict(2).size(), 2u);
  EXPECT_EQ(evictor_.counts().broken_leases, 0u);
}

TEST_F(EvictorTest, LeasesBreakWhereTheyAreAllThatIsInTheWay) {
  fill();
  for (uint64_t i = 0; i < 3; ++i) {
    store(i);
    pass(2 * kSecond);
  }
  for (uint64_t i = 0; i < 3; ++i) {
    evictor_.probed(static_cast<uint32_t>(i), kRootId, chunk_name(i), id_of(i), kChunk);
    pass(kSecond);
  }
  EXPECT_EQ(evict(1), Numbers{});
  EXPECT_EQ(evict(1, Evictor::Leases::kBreak), Numbers{0});
  EXPECT_EQ(evictor_.counts().broken_leases, 1u);
}

TEST_F(EvictorTest, WhatWasWrittenIsLeasedToo) {
  fill();
  store(0);
  EXPECT_EQ(evict(1, Evictor::Leases::kSettled), Numbers{});
  EXPECT_EQ(evict(1, Evictor::Leases::kEighth), Numbers{0});
  store(1);
  pass(2 * kSecond);
  EXPECT_EQ(evict(1), Numbers{});
  EXPECT_EQ(evict(1, Evictor::Leases::kSettled), Numbers{1});
  store(2);
  pass(6 * kSecond);
  EXPECT_EQ(evict(1), Numbers{2});
  EXPECT_EQ(evictor_.counts().broken_leases, 0u) << "counted is what was seen to be probed";
}

// A file that is filled under its own name for longer than leases last: its lease counts from its last write, not from its creation.
TEST_F(EvictorTest, WhatIsFilledForLongIsLeasedFromItsEndOn) {
  fill();
  evictor_.created(kRootId, "pool", id_of(5));
  pass(12 * kSecond);
  store(6);  // by now the policy knows the other one, as the older one
  pass(3 * kSecond);
  evictor_.written(id_of(5), kChunk);
  EXPECT_EQ(evict(2, Evictor::Leases::kSettled), Numbers{6});
  pass(2 * kSecond);
  EXPECT_EQ(evict(1), Numbers{});
  EXPECT_EQ(evict(1, Evictor::Leases::kSettled), Numbers{5});
}

TEST_F(EvictorTest, WhatIsWrittenForLongIsUsedThen) {
  fill();
  for (const uint64_t number : {0u, 1u, 2u}) evictor_.published(static_cast<uint32_t>(number), kRootId, chunk_name(number), id_of(number), kChunk);
  pass(20 * kSecond);
  evictor_.written(id_of(0), kChunk);
  pass(20 * kSecond);
  EXPECT_EQ(evict(3), (Numbers{1, 2, 0}));
}

TEST_F(EvictorTest, AWriteDoesNotEndALease) {
  fill();
  store(0);
  evictor_.probed(2, kRootId, chunk_name(0), id_of(0), kChunk);
  evictor_.published(1, kRootId, chunk_name(0), id_of(0), kChunk);  // the rename was answered before it was reported
  EXPECT_EQ(evict(1, Evictor::Leases::kEighth), Numbers{});
  pass(7 * kSecond);
  evictor_.published(1, kRootId, chunk_name(0), id_of(0), kChunk);
  EXPECT_EQ(evict(1, Evictor::Leases::kEighth), Numbers{0}) << "the lease was over";
}

// A probed name gets another object before it is opened: the same chunk, stored again.
TEST_F(EvictorTest, ALeaseIsOfTheName) {
  using enum Evictor::Leases;
  for (const bool gone_first : {true, false}) {
    evictor_.configure({});
    start("lru");
    fill();
    store(0), store(1);
    evictor_.probed(2, kRootId, chunk_name(0), id_of(0), kChunk);
    if (gone_first) evictor_.deleted(id_of(0));
    evictor_.published(1, kRootId, chunk_name(0), id_of(10), kChunk);
    if (!gone_first) evictor_.deleted(id_of(0));
    pass(3 * kSecond);
    EXPECT_EQ(evict(9, kSettled), Numbers{1});
    pass(4 * kSecond);
    evictor_.published(1, kRootId, chunk_name(0), id_of(11), kChunk);
    evictor_.deleted(id_of(10));
    pass(3 * kSecond);
    EXPECT_EQ(evict(9, kSettled), Numbers{11}) << "that lease was over";
  }
}

TEST_F(EvictorTest, WhatIsProbedAfterItWasChosenIsWantedAgain) {
  using enum Evictor::Leases;
  fill();
  store(0), store(1);
  pass(60 * kSecond);
  const auto victims = evictor_.choose(2 * kChunk, 2, kKeep);
  ASSERT_EQ(victims.size(), 2u);
  evictor_.will_be_told(victims[0].members[0].id, 1);
  EXPECT_TRUE(evictor_.wanted_again(victims[0], kKeep));
  EXPECT_TRUE(evictor_.wanted_again(victims[0], kEighth));
  EXPECT_TRUE(evictor_.wanted_again(victims[0], kBreak)) << "others were not used for longer";
  EXPECT_FALSE(evictor_.wanted_again(victims[1], kKeep));
  EXPECT_FALSE(evictor_.wanted_again(victims[1], kBreak));
  for (const auto& victim : victims) evictor_.refused(victim, Evictor::Refused::kForNow);
}

TEST_F(EvictorTest, BodyAndSidecarAndRanksAreOneUnit) {
  fill();
  store(0);
  const std::string hash = chunk_name(7).substr(0, 32);
  evictor_.published(1, kRootId, "m@4@0@" + hash + ".safetensors", id_of(10), kChunk);
  evictor_.published(1, kRootId, "m@4@0@" + hash + ".safetensors.metadata", id_of(11), 4096);
  evictor_.published(1, kRootId, "m@4@1@" + hash + ".safetensors", id_of(12), kChunk);
  pass(60 * kSecond);
  evictor_.opened(id_of(0), kChunk);
  const auto victims = evictor_.choose(1, 1, Evictor::Leases::kKeep);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].members.size(), 3u);
  EXPECT_EQ(victims[0].bytes, 2 * kChunk + 4096);
  evictor_.refused(victims[0], Evictor::Refused::kForNow);
  EXPECT_EQ(evictor_.check(), "");
}

TEST_F(EvictorTest, WhatIsNoChunkDoesNotHoldWhatIsBeforeItInItsChain) {
  fill();
  store(0), store(1), store(2);
  pass(7 * kSecond);
  const auto victims = evictor_.choose(1, 1, Evictor::Leases::kKeep);
  ASSERT_EQ(victims.size(), 1u);
  ASSERT_EQ(victims[0].members[0].id, id_of(2));
  evictor_.refused(victims[0], Evictor::Refused::kForLong);
  EXPECT_EQ(evict(9), (Numbers{1, 0}));
  pass(61 * kSecond);
  EXPECT_EQ(evict(9), Numbers{2});
}

// It holds the units before it in its chain only while anything else can be evicted.
TEST_F(EvictorTest, AnEndThatStaysIsCutFromItsChain) {
  fill();
  store(0), store(1), store(2);
  pass(7 * kSecond);
  auto victims = evictor_.choose(1, 1, Evictor::Leases::kKeep);
  ASSERT_EQ(victims.size(), 1u);
  ASSERT_EQ(victims[0].members[0].id, id_of(2));
  evictor_.refused(victims[0], Evictor::Refused::kForNow);
  EXPECT_EQ(evict(9), (Numbers{1, 0}));
  pass(kSecond);
  EXPECT_EQ(evict(9), Numbers{2});
}

// One thread stores without a pause: the end of its chain is always leased.
TEST_F(EvictorTest, WhatIsNotLeasedGoesBeforeALeaseIsBroken) {
  fill();
  for (uint64_t i = 0; i < 10; ++i) {
    store(i);
    evictor_.probed(1, kRootId, chunk_name(i), id_of(i), kChunk);
    pass(kSecond * 9 / 10);
  }
  EXPECT_EQ(evict(20), (Numbers{3, 2, 1, 0}));
}

// Leases alone fill the volume: the oldest ones are broken, also within one chain, whose end is the youngest.
TEST_F(EvictorTest, TheOldestLeasesBreakFirst) {
  fill();
  for (uint64_t i = 0; i < 10; ++i) {
    store(i);
    evictor_.probed(1, kRootId, chunk_name(i), id_of(i), kChunk);
    pass(kSecond * 3 / 10);
  }
  pass(kSecond / 10);
  EXPECT_EQ(evict(20, Evictor::Leases::kSettled), Numbers{});
  EXPECT_EQ(evict(20, Evictor::Leases::kHalf), Numbers{0});
  EXPECT_EQ(evict(20, Evictor::Leases::kQuarter), (Numbers{5, 4, 3, 2, 1}));
  EXPECT_EQ(evictor_.counts().broken_leases, 6u);
  EXPECT_EQ(evict(20, Evictor::Leases::kEighth), (Numbers{7, 6}));
  EXPECT_EQ(evict(20, Evictor::Leases::kBreak), (Numbers{9, 8}));
}

TEST_F(EvictorTest, ASidecarThatComesWhenItsBodyWentGoesToo) {
  fill();
  const auto rank = [](int number) { return fmt::format("m@2@{}@{}.safetensors", number, chunk_name(7).substr(0, 32)); };
  const auto sidecar = [&](int number) { return rank(number) + ".metadata"; };
  evictor_.published(1, kRootId, sidecar(0), id_of(9), 4096);
  EXPECT_TRUE(evictor_.choose_stranded(8).empty()) << "some write it first";
  evictor_.deleted(id_of(9));
  evictor_.published(1, kRootId, rank(0), id_of(10), kChunk);
  evictor_.published(1, kRootId, rank(1), id_of(11), kChunk);
  EXPECT_EQ(evict(1, Evictor::Leases::kBreak), (Numbers{10, 11}));
  evictor_.published(1, kRootId, sidecar(0), id_of(20), 4096);
  evictor_.published(1, kRootId, sidecar(1), id_of(21), 4096);
  auto victims = evictor_.choose_stranded(1);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].members[0].id, id_of(20));
  EXPECT_TRUE(evictor_.choose_stranded(8).empty()) << "one of the unit is going";
  evictor_.refused(victims[0], Evictor::Refused::kForNow);
  evictor_.published(1, kRootId, rank(0), id_of(12), kChunk);  // stored again
  victims = evictor_.choose_stranded(8);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].members[0].id, id_of(21));
  evictor_.deleted(id_of(21));
  evictor_.evicted(victims[0], 1, 4096);
  EXPECT_TRUE(evictor_.choose_stranded(8).empty());
  EXPECT_EQ(evictor_.check(), "");
}

TEST_F(EvictorTest, WhatWasRefusedIsNotAskedForAgainAtOnce) {
  fill();
  store(0);
  auto victims = evictor_.choose(1, 8, Evictor::Leases::kBreak);
  ASSERT_EQ(victims.size(), 1u);
  evictor_.refused(victims[0], Evictor::Refused::kForNow);
  EXPECT_TRUE(evictor_.choose(1, 8, Evictor::Leases::kBreak).empty());
  evictor_.forgive();
  victims = evictor_.choose(1, 8, Evictor::Leases::kBreak);
  ASSERT_EQ(victims.size(), 1u);
  evictor_.refused(victims[0], Evictor::Refused::kForNow);
  pass(7 * kSecond);
  EXPECT_EQ(evict(1), Numbers{0});
}

TEST_F(EvictorTest, FilesThatAreNotRenamedCountAfterAWhileOrWhenNothingElseIsLeft) {
  fill();
  evictor_.created(kRootId, chunk_name(5), id_of(5));
  store(6);
  pass(7 * kSecond);
  EXPECT_EQ(evict(1), Numbers{6});
  EXPECT_EQ(evict(1), Numbers{5});
  evictor_.created(kRootId, chunk_name(7), id_of(7));
  pass(60 * kSecond);
  store(8);
  EXPECT_EQ(evict(1), Numbers{7});
}

TEST_F(EvictorTest, PinsHoldAndAreCounted) {
  start("lru", 4 * kChunk);
  fill();
  const ObjectId directory = ObjectId::make(0, 1, 50), below = ObjectId::make(0, 1, 51);
  evictor_.directory_named(kRootId, "kept", directory);
  evictor_.directory_named(directory, "below", below);
  store(0, below);
  store(1);
  store(2);
  ASSERT_TRUE(evictor_.pin(directory, true, true));
  ASSERT_TRUE(evictor_.pin(id_of(1), false, true));
  EXPECT_EQ(evictor_.counts().pinned_bytes, 2 * kChunk);
  store(3, below);  // later ones, too
  EXPECT_EQ(evictor_.counts().pinned_bytes, 3 * kChunk);
  store(4, below);
  store(5, below);  // beyond the allowed pinned bytes
  EXPECT_EQ(evictor_.counts().pinned_objects, 4u);
  const Status refused = evictor_.pin(id_of(2), false, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  pass(60 * kSecond);
  Numbers went = evict(9);
  std::ranges::sort(went);
  EXPECT_EQ(went, (Numbers{2, 5}));
  ASSERT_TRUE(evictor_.pin(directory, true, false));
  EXPECT_EQ(evictor_.counts().pinned_bytes, kChunk);
  EXPECT_EQ(evict(9).size(), 3u);
  EXPECT_TRUE(evictor_.is_pinned(id_of(1)));
  evictor_.deleted(id_of(1));
  EXPECT_EQ(evictor_.counts().pinned_bytes, 0u);
}

TEST_F(EvictorTest, APinOutlivesALowerLimitAndAnotherFilling) {
  const ObjectId directory = ObjectId::make(0, 1, 50);
  const auto fill_again = [&] {
    evictor_.found_directory({}, {}, kRootId, false);
    evictor_.found_directory(kRootId, "kept", directory, true);
    for (uint64_t n = 0; n < 3; ++n)
      evictor_.found({.parent = directory, .id = id_of(10 + n), .name = chunk_name(10 + n), .size_bytes = kChunk, .follows = {}});
    for (uint64_t n = 0; n < 3; ++n)
      evictor_.found({.parent = kRootId, .id = id_of(n), .name = chunk_name(n), .size_bytes = kChunk, .follows = {}, .pinned = true});
    evictor_.found({.parent = kRootId, .id = id_of(20), .name = chunk_name(20), .size_bytes = kChunk, .follows = {}});
    const uint64_t number = evictor_.filling();
    while (!evictor_.build(number)) {
    }
  };
  start("lru", 100 * kChunk);
  start("s3fifo", 2 * kChunk);  // another policy: filled again
  fill_again();
  for (uint64_t n = 0; n < 3; ++n) EXPECT_TRUE(evictor_.is_pinned(id_of(n))) << n;
  EXPECT_EQ(evictor_.counts().pinned_objects, 5u) << "below the directory as many as may be";
  EXPECT_FALSE(evictor_.pin(id_of(20), false, true)) << "a new one";
  EXPECT_TRUE(evictor_.pin(id_of(0), false, true)) << "not a new one";
  start("s3fifo", 100 * kChunk);
  EXPECT_EQ(evictor_.counts().pinned_objects, 6u) << "now all below the directory";
  start("s3fifo", kChunk);
  EXPECT_EQ(evictor_.counts().pinned_objects, 6u) << "none is dropped";
  EXPECT_EQ(evict(9), Numbers{20});
  start("lru", kChunk);
  fill_again();
  EXPECT_EQ(evictor_.counts().pinned_objects, 4u);
  EXPECT_EQ(evictor_.pinned().bytes, 4 * kChunk);
}

TEST_F(EvictorTest, NewPinsAreLimitedWhileEvictionIsOffAsWell) {
  start("lru", 3 * kChunk);
  fill();
  store(0);
  ASSERT_TRUE(evictor_.pin(id_of(0), false, true));
  evictor_.configure({.on = false, .lease_ms = 0, .policy = "lru", .most_pinned_bytes = 3 * kChunk});
  EXPECT_TRUE(evictor_.pin(id_of(1), false, true, kChunk));
  EXPECT_TRUE(evictor_.pin(id_of(2), false, true, kChunk));
  EXPECT_TRUE(evictor_.pin(id_of(2), false, true, kChunk)) << "is pinned already";
  const Status refused = evictor_.pin(id_of(3), false, true, kChunk);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  ASSERT_TRUE(evictor_.pin(id_of(0), false, false, kChunk));
  EXPECT_TRUE(evictor_.pin(id_of(3), false, true, kChunk));
  evictor_.deleted(id_of(1));
  EXPECT_TRUE(evictor_.pin(id_of(4), false, true, kChunk));
  EXPECT_FALSE(evictor_.pin(id_of(5), false, true, 1));
}

TEST_F(EvictorTest, APinnedFileThatGrowsKeepsItsPinWithinTheLimit) {
  start("lru", 3 * kChunk);
  fill();
  for (uint64_t n = 0; n < 3; ++n) {
    evictor_.created(kRootId, chunk_name(n), id_of(n));
    ASSERT_TRUE(evictor_.pin(id_of(n), false, true));
  }
  evictor_.written(id_of(0), 2 * kChunk);
  evictor_.written(id_of(1), kChunk);
  EXPECT_EQ(evictor_.counts().pinned_bytes, 3 * kChunk);
  evictor_.written(id_of(2), kChunk);
  EXPECT_EQ(evictor_.counts().pinned_bytes, 3 * kChunk);
  EXPECT_FALSE(evictor_.is_pinned(id_of(2)));
  EXPECT_TRUE(evictor_.is_pinned(id_of(0)) && evictor_.is_pinned(id_of(1)));
}

TEST_F(EvictorTest, OnlyAMoveIntoOrOutOfAPinnedDirectoryIsAPassOverAllObjects) {
  fill();
  const auto directory = [](uint64_t number) { return ObjectId::make(0, 1, 50'000 + number); };
  const ObjectId kept = directory(0), other = directory(1), moved = directory(2);
  evictor_.directory_named(kRootId, "kept", kept);
  evictor_.directory_named(kRootId, "other", other);
  evictor_.directory_named(other, "moved", moved);
  store(0, moved);
  store(1, other);
  ASSERT_TRUE(evictor_.pin(kept, true, true));
  const uint64_t passes = evictor_.counts().pin_passes;
  for (uint64_t n = 10; n < 50; ++n) evictor_.directory_named(n % 2 == 0 ? kept : kRootId, fmt::format("{}", n), directory(n));
  evictor_.directory_named(kept, "empty", directory(11));
  evictor_.directory_named(kRootId, "moved", moved);
  EXPECT_EQ(evictor_.counts().pin_passes, passes) << "nothing is below them, or that is as it was";
  evictor_.directory_named(kept, "moved", moved);
  EXPECT_TRUE(evictor_.is_pinned(id_of(0)) && !evictor_.is_pinned(id_of(1)));
  evictor_.directory_named(directory(10), "moved", moved);
  EXPECT_TRUE(evictor_.is_pinned(id_of(0)));
  EXPECT_EQ(evictor_.counts().pin_passes, passes + 1);
  evictor_.directory_named(other, "moved", moved);
  EXPECT_FALSE(evictor_.is_pinned(id_of(0)));
  store(2, directory(60));  // before its directory is known
  evictor_.directory_named(kept, "60", directory(60));
  EXPECT_TRUE(evictor_.is_pinned(id_of(2)));
  EXPECT_EQ(evictor_.counts().pinned_bytes, kChunk);
  EXPECT_EQ(evictor_.counts().pin_passes, passes + 3);
  EXPECT_EQ(evictor_.check(), "");
}

TEST_F(EvictorTest, AVolumeThatWasThereGoesByItsTimesAndChains) {
  evictor_.found_directory({}, {}, kRootId, false);
  for (uint64_t i = 0; i < 3; ++i)  // 0 <- 1 <- 2; the head looks older than it is, because not every read updates the read time
    evictor_.found({.parent = kRootId, .id = id_of(i), .name = chunk_name(i), .size_bytes = kChunk,
                    .used_ns = static_cast<int64_t>(100 + i) * kSecond, .follows = i > 0 ? id_of(i - 1) : ObjectId{}});
  evictor_.found({.parent = kRootId, .id = id_of(3), .name = chunk_name(3), .size_bytes = kChunk, .used_ns = 50 * kSecond, .follows = {}});
  store(4);  // meanwhile
  fill();
  EXPECT_TRUE(evictor_.counts().ready);
  EXPECT_EQ(evictor_.counts().objects, 5u);
  pass(7 * kSecond);
  EXPECT_EQ(evict(9), (Numbers{3, 2, 1, 0, 4}));
}

TEST_F(EvictorTest, SwitchedOffItForgetsAndChoosesNothing) {
  fill();
  store(0);
  evictor_.configure({.on = false, .lease_ms = 0, .policy = "lru"});
  EXPECT_TRUE(evictor_.choose(1, 1, Evictor::Leases::kBreak).empty());
  EXPECT_EQ(evictor_.counts().objects, 0u);
  EXPECT_EQ(evictor_.filling(), 0u);
  start("prefix");
  EXPECT_NE(evictor_.filling(), 0u);
}

TEST_F(EvictorTest, NamesThatLookAlikeAreNotOneUnit) {
  fill();
  for (uint64_t i = 0; i < 3'000; ++i)  // more than one unit may have
    evictor_.published(1, kRootId, fmt::format("deadbeefdeadbeef-{}", i), id_of(i), kChunk);
  EXPECT_EQ(evictor_.check(), "");
  EXPECT_GT(evictor_.counts().units, 900u);
}

TEST_F(EvictorTest, WhatWentIsCountedByReasonAndAge) {
  fill();
  for (uint64_t i = 0; i < 4; ++i) {
    store(i);
    pass(3 * kSecond);
  }
  const auto go = [&](int64_t unused_ns, bool waited_for, bool broken) {
    pass(unused_ns);
    auto victims = evictor_.choose(1, 1, broken ? Evictor::Leases::kBreak : Evictor::Leases::kKeep);
    ASSERT_EQ(victims.size(), 1u);
    victims[0].waited_for = waited_for;
    for (const Evictor::Member& member : victims[0].members) evictor_.deleted(member.id);
    evictor_.evicted(victims[0], 1, kChunk);
  };
  go(0, false, false);
  go(30 * 60 * kSecond, true, false);
  go(5 * 3600 * kSecond, true, false);
  evictor_.probed(5, kRootId, chunk_name(3), id_of(3), kChunk);
  go(0, true, true);
  store(9);
  go(100'000 * kSecond, false, false);
  const auto why = evictor_.counts().evicted_why;
  EXPECT_EQ(why[static_cast<size_t>(Evictor::Why::kAhead)].objects, 2u);
  EXPECT_EQ(why[static_cast<size_t>(Evictor::Why::kWaitedFor)].bytes, 2 * kChunk);
  EXPECT_EQ(why[static_cast<size_t>(Evictor::Why::kLeaseBroken)].objects, 1u);
  const auto age = evictor_.counts().evicted_age;
  EXPECT_EQ(age[static_cast<size_t>(Evictor::Age::kBelowMinute)].objects, 2u);
  EXPECT_EQ(age[static_cast<size_t>(Evictor::Age::kBelowHour)].objects, 1u);
  EXPECT_EQ(age[static_cast<size_t>(Evictor::Age::kBelowDay)].objects, 1u);
  EXPECT_EQ(age[static_cast<size_t>(Evictor::Age::kOlder)].bytes, kChunk);
}

TEST_F(EvictorTest, WhatWentIsRememberedUntilItComesBack) {
  fill();
  store(0), store(1);
  pass(60 * kSecond);
  EXPECT_EQ(evict(1).size(), 1u);
  const uint64_t gone = evictor_.was_evicted(kRootId, chunk_name(0)) ? 0 : 1;
  EXPECT_TRUE(evictor_.was_evicted(kRootId, chunk_name(gone)));
  EXPECT_TRUE(evictor_.was_evicted(kRootId, chunk_name(gone) + ".metadata")) << "all that is of the unit";
  EXPECT_FALSE(evictor_.was_evicted(kRootId, chunk_name(1 - gone)));
  EXPECT_FALSE(evictor_.was_evicted(kRootId, chunk_name(77)));
  EXPECT_FALSE(evictor_.was_evicted(ObjectId::make(0, 1, 5), chunk_name(gone))) << "of a directory that nobody knows";
  store(gone);
  EXPECT_FALSE(evictor_.was_evicted(kRootId, chunk_name(gone)));
  EXPECT_EQ(evictor_.counts().came_back, 1u);
  EXPECT_EQ(evictor_.counts().remembered_units, 0u);
  evictor_.deleted(id_of(gone));  // by a client
  EXPECT_FALSE(evictor_.was_evicted(kRootId, chunk_name(gone)));
}

TEST_F(EvictorTest, AsManyAsAreThereAreRemembered) {
  fill();
  for (uint64_t i = 0; i < 5'000; ++i) {
    store(i);
    pass(3 * kSecond);
    if (i >= 100) evict(1);
  }
  EXPECT_EQ(evictor_.counts().units, 100u);
  EXPECT_EQ(evictor_.counts().remembered_units, 1'024u) << "but not fewer than so many";
  EXPECT_TRUE(evictor_.was_evicted(kRootId, chunk_name(4'800)));
  EXPECT_FALSE(evictor_.was_evicted(kRootId, chunk_name(3'000)));
}

TEST_F(EvictorTest, TheSurveyTellsTheColdestAndTheLeases) {
  fill();
  EXPECT_EQ(evictor_.survey().coldest_ms, -1);
  store(0);
  pass(50 * kSecond);
  store(1);
  pass(50 * kSecond);
  EXPECT_NEAR(static_cast<double>(evictor_.survey().coldest_ms), 100'000, 100);
  EXPECT_EQ(evictor_.survey().leased_objects, 0u);
  ASSERT_TRUE(evictor_.pin(id_of(0), false, true));
  EXPECT_NEAR(static_cast<double>(evictor_.survey().coldest_ms), 50'000, 100) << "what is pinned may not go";
  evictor_.probed(3, kRootId, chunk_name(1), id_of(1), kChunk);
  EXPECT_EQ(evictor_.survey().leased_objects, 1u);
  EXPECT_EQ(evictor_.survey().coldest_ms, -1);
  for (uint64_t i = 100; i < 30'100; ++i) store(i);
  pass(9 * kSecond);
  for (uint64_t i = 100; i < 15'100; ++i) evictor_.opened(id_of(i), kChunk);
  const double leased = static_cast<double>(evictor_.survey().leased_objects);
  EXPECT_NEAR(leased, 15'000, 300) << "an estimate";
}

TEST_F(EvictorTest, WhatKeepsAnObjectIsKnownButForTheLookOfTheAsker) {
  fill();
  for (uint64_t i = 0; i < 4; ++i) {
    store(i);
    pass(30 * kSecond);
  }
  EXPECT_FALSE(evictor_.known(id_of(50), 1));
  evictor_.probed(9, kRootId, chunk_name(1), id_of(1), kChunk);
  evictor_.probed(9, kRootId, chunk_name(1), id_of(1), kChunk);
  const auto asker = evictor_.known(id_of(1), 9);
  ASSERT_TRUE(asker);
  EXPECT_EQ(asker->hold, evict::Hold::kNone);
  EXPECT_NEAR(static_cast<double>(asker->unused_ms), 90'000, 100);
  EXPECT_NEAR(asker->used_since, 2.0 / 3, 0.01);
  EXPECT_EQ(evictor_.known(id_of(1), 8)->hold, evict::Hold::kLeased);
  EXPECT_EQ(evictor_.known(id_of(1), 8)->used_since, 0);
  evictor_.opened(id_of(1), kChunk);
  EXPECT_EQ(evictor_.known(id_of(1), 9)->hold, evict::Hold::kLeased) << "not only looked up";
  evictor_.probed(9, kRootId, chunk_name(3), id_of(3), kChunk);
  pass(3 * kSecond);
  EXPECT_EQ(evictor_.known(id_of(3), 9)->hold, evict::Hold::kLeased) << "it is";
  ASSERT_TRUE(evictor_.pin(id_of(2), false, true));
  EXPECT_EQ(evictor_.known(id_of(2), 9)->hold, evict::Hold::kPinned);
}

// The same with each policy: thousands of names in some directories, opened, removed, renamed, evicted.
TEST(EvictorRandomTest, AllAddsUpWhateverHappens) {
  for (const std::string& policy : evict::policy_names()) {
    ManualClock clock(1'000 * kSecond);
    Evictor evictor(clock);
    evictor.configure({.on = true, .lease_ms = 100, .policy = policy, .most_pinned_bytes = 100 * kChunk});
    evictor.found_directory({}, {}, kRootId, false);
    for (const uint64_t number = evictor.filling(); !evictor.build(number);) {
    }
    uint64_t seed = 7, next = 0, gone = 0;
    const auto random = [&](uint64_t below) { return (seed = evict::mix_key(seed + 1)) % below; };
    const auto id = [](uint64_t number) { return ObjectId::make(0, 1, 1'000 + number); };
    for (int step = 0; step < 20'000; ++step) {
      clock.advance_ns(static_cast<int64_t>(random(20'000'000)));
      const uint64_t number = random(400), directory_number = random(6);
      const ObjectId directory = ObjectId::make(0, 1, 2 + directory_number);
      const std::string name = fmt::format("{:032x}{}", evict::mix_key(number), random(3) == 0 ? ".metadata" : "");
      switch (random(10)) {
        case 0: case 1: case 2: evictor.published(3, directory, name, id(next++), kChunk * (1 + random(2))); break;
        case 3: evictor.created(directory, name, id(next++)); break;
        case 4: if (next > 0) evictor.opened(id(random(next)), kChunk); break;
        case 5: if (next > 0) evictor.probed(2, directory, name, id(random(next)), kChunk); break;
        case 6: if (next > 0) evictor.deleted(id(random(next))); break;
        case 7: evictor.directory_named(ObjectId::make(0, 1, 2 + random(6)), "d", directory); break;
        case 8: static_cast<void>(evictor.pin(random(2) == 0 ? directory : id(random(next + 1)), random(2) == 0, random(2) == 0)); break;
        default:
          for (const Evictor::Victim& victim : evictor.choose(kChunk * 4, 8, random(2) == 0 ? Evictor::Leases::kKeep : Evictor::Leases::kBreak)) {
            if (random(4) == 0) {
              evictor.refused(victim, random(2) == 0 ? Evictor::Refused::kForNow : Evictor::Refused::kForLong);
              continue;
            }
            for (const Evictor::Member& member : victim.members) evictor.deleted(member.id);
            evictor.evicted(victim, victim.members.size(), victim.bytes);
            gone += victim.members.size();
          }
      }
      if (step % 500 == 0) {
        ASSERT_EQ(evictor.check(), "") << policy << " step " << step;
      }
    }
    EXPECT_EQ(evictor.check(), "") << policy;
    EXPECT_GT(gone, 500u) << policy;
  }
}

}  // namespace evictor_test
}  // namespace kvcachefs
