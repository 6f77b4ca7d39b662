#include "store/peers/claims.h"

#include <gtest/gtest.h>

#include <vector>

#include "store/base/units.h"

namespace kvcachefs {
namespace claims_test {

constexpr uint64_t kVolume = 66 * kMiB, kCapacity = 64 * kMiB, kGrain = kMiB;  // all, and without what is left to newcomers
using Life = PeerFigures::Life;

OwnFigures own(uint64_t used_bytes) {
  OwnFigures figures;
  figures.capacity_bytes = kVolume;
  figures.physical_bytes = figures.used_bytes = figures.used_soon_bytes = used_bytes;
  return figures;
}

PeerFigures peer(uint64_t used_bytes, Life life = Life::kLives) {
  PeerFigures figures;
  figures.capacity_bytes = kVolume;
  figures.physical_bytes = used_bytes;
  figures.claim_bytes = figures.wish_bytes = used_bytes + kGrain;
  figures.life = life;
  return figures;
}

ClaimPlan plan(const OwnFigures& own, uint64_t claim_bytes, std::vector<PeerFigures> peers) { return plan_claim(own, claim_bytes, peers); }

TEST(Claims, TheGrainFitsLargeAndSmallVolumes) {
  EXPECT_EQ(claim_grain(64 * kMiB), kMiB);
  EXPECT_EQ(claim_grain(16 * kMiB), 256 * kKiB);
  EXPECT_EQ(claim_grain(100 * kGiB), kGiB);
  EXPECT_EQ(claim_grain(10 * 1024 * kGiB), 10 * kGiB);
}

TEST(Claims, WhoWritesClaimsAheadOfIt) {
  OwnFigures writer = own(4 * kMiB);
  const ClaimPlan idle = plan(writer, 4 * kMiB, {peer(8 * kMiB)});
  EXPECT_GE(idle.target_bytes, 4 * kMiB + kGrain) << "also before it writes";
  writer.written_per_s = kMiB;
  const ClaimPlan writing = plan(writer, 4 * kMiB, {peer(8 * kMiB)});
  EXPECT_EQ(writing.wish_bytes, 9 * kMiB);
  EXPECT_GE(writing.target_bytes, 9 * kMiB);
  EXPECT_EQ(writing.evict_bytes, 0u);
  writer.written_per_s = 100 * kMiB;
  EXPECT_EQ(plan(writer, 4 * kMiB, {peer(8 * kMiB)}).wish_bytes, 12 * kMiB) << "a quarter of the capacity, among two";
}

TEST(Claims, SomeIsLeftToThoseWhoCome) {
  EXPECT_EQ(left_to_newcomers(kVolume), 2 * kMiB);
  EXPECT_EQ(left_to_newcomers(100 * kGiB), 16 * kMiB);
  EXPECT_EQ(left_by_lone(kVolume), kVolume / 33);
  EXPECT_EQ(left_by_lone(256 * kMiB), 4 * kMiB);
  const uint64_t lone = kVolume - kVolume / 33;
  OwnFigures full = own(kCapacity - kMiB);
  full.evicts = true;
  EXPECT_EQ(plan(full, kCapacity - kMiB, {}).target_bytes, lone);
  full.waits = true;
  EXPECT_EQ(plan(full, kCapacity - kMiB, {}).target_bytes, lone) << "it evicts: who comes finds room to begin";
  full.evicts = false;
  EXPECT_EQ(plan(full, kCapacity - kMiB, {}).target_bytes, kVolume) << "a node that is alone is held back by nobody";
  full.waits = false;
  EXPECT_EQ(plan(full, kCapacity - kMiB, {}).target_bytes, kVolume) << "else nobody has it";
  EXPECT_EQ(plan(full, kCapacity - kMiB, {peer(0, Life::kGone)}).target_bytes, kCapacity);
  full.evicts = true;
  EXPECT_EQ(plan(full, kVolume, {}).target_bytes, lone) << "there is something to evict again";
}

TEST(Claims, ANodeThatIsAloneClaimsAGrainAhead) {
  EXPECT_EQ(lone_grain(64 * kMiB), 16 * kMiB);
  EXPECT_EQ(lone_grain(2 * kGiB), 256 * kMiB);
  EXPECT_EQ(lone_grain(1024 * kGiB), 64 * kGiB);
  const ClaimPlan begins = plan(own(kMiB), kMiB, {});
  EXPECT_EQ(begins.target_bytes, kMiB + kGrain + 16 * kMiB);
  EXPECT_EQ(plan(own(kMiB), begins.target_bytes, {}).target_bytes, begins.target_bytes);
  EXPECT_EQ(plan(own(3 * kMiB), begins.target_bytes, {}).target_bytes, begins.target_bytes) << "enough is left";
  EXPECT_EQ(plan(own(10 * kMiB), begins.target_bytes, {}).target_bytes, 27 * kMiB) << "half of it is";
  EXPECT_GE(begins.low_bytes, 8 * kMiB);
  EXPECT_LE(plan(own(kMiB), 60 * kMiB, {}).target_bytes, 18 * kMiB) << "what was removed is left to others";
  // The same beside a node without a daemon.
  EXPECT_EQ(plan(own(kMiB), kMiB, {peer(20 * kMiB, Life::kGone)}).target_bytes, begins.target_bytes);
}

TEST(Claims, OfANodeThatIsGoneItsBytesCount) {
  PeerFigures gone = peer(20 * kMiB);
  gone.claim_bytes = gone.wish_bytes = 60 * kMiB;
  EXPECT_EQ(plan(own(kMiB), kMiB, {gone}).unclaimed_bytes, 3 * kMiB);
  gone.life = Life::kGone;
  gone.capacity_bytes = kMiB;
  const ClaimPlan beside = plan(own(kMiB), kMiB, {gone});
  EXPECT_EQ(beside.unclaimed_bytes, 43 * kMiB);
  EXPECT_EQ(beside.evict_bytes, 0u);
  EXPECT_FALSE(beside.others_make_room);
}

// A container that comes back under another name each time leaves such nodes behind.
TEST(Claims, BesideNodesThatAreGoneLittleIsKeptEmpty) {
  OwnFigures writer = own(50 * kMiB);
  writer.evicts = writer.waits = true;
  writer.evictable_by_age[3] = 40 * kMiB;
  const PeerFigures gone = peer(4 * kMiB, Life::kGone);
  EXPECT_LE(plan(writer, 50 * kMiB, {gone}).wish_bytes, 55 * kMiB);
  EXPECT_EQ(plan(writer, 55 * kMiB, {gone}).evict_bytes, 0u);
  EXPECT_GT(plan(own(50 * kMiB), 50 * kMiB, {gone}).target_bytes, 50 * kMiB);
}

TEST(Claims, BesideOneOfWhichNothingIsKnownNothingIsClaimed) {
  PeerFigures unknown;
  unknown.claim_bytes = kUnknownClaim;
  unknown.life = Life::kMayLive;
  const ClaimPlan beside = plan(own(kMiB), kMiB, {unknown});
  EXPECT_EQ(beside.target_bytes, kMiB);
  EXPECT_EQ(beside.evict_bytes, 0u);
  EXPECT_TRUE(beside.others_make_room) << "it is worth waiting for";
}

// A node that was alone has claimed much ahead; that it lives is known when its HEAD has moved.
TEST(Claims, NothingGoesForWhatANodeThatWasAloneGivesBack) {
  OwnFigures begins = own(30 * kMiB);
  begins.evicts = true;
  begins.evictable_by_age[3] = 20 * kMiB;
  PeerFigures alone = peer(40 * kMiB, Life::kMayLive);
  alone.physical_bytes = alone.wish_bytes = 10 * kMiB;
  const ClaimPlan beside = plan(begins, 31 * kMiB, {alone});
  EXPECT_TRUE(beside.is_short);
  EXPECT_EQ(beside.evict_bytes, 0u);
  begins.waits = true;
  EXPECT_GT(plan(begins, 31 * kMiB, {alone}).evict_bytes, 0u) << "a call cannot wait for that";
  begins.waits = false;
  alone.wish_bytes = 40 * kMiB;
  EXPECT_GT(plan(begins, 31 * kMiB, {alone}).evict_bytes, 0u) << "it keeps it";
}

// The growth waits, so it does not use the claim; and it is wished for until it is claimed.
TEST(Claims, WhatIndexesOfPeersWantIsWishedForAndRaisedLikeAnythingElse) {
  OwnFigures wants = own(4 * kMiB);
  wants.wanted_bytes = 20 * kMiB;
  wants.used_soon_bytes += wants.wanted_bytes;
  const ClaimPlan room = plan(wants, 8 * kMiB, {peer(16 * kMiB)});
  EXPECT_GE(room.wish_bytes, 24 * kMiB);
  EXPECT_GE(room.target_bytes, 24 * kMiB);
  const ClaimPlan none = plan(wants, 8 * kMiB, {peer(kCapacity - 8 * kMiB)});
  EXPECT_GE(none.wish_bytes, 24 * kMiB) << "others hear of it";
  EXPECT_EQ(none.target_bytes, 8 * kMiB);
}

TEST(Claims, NothingIsRaisedBeyondWhatIsLeft) {
  OwnFigures writer = own(4 * kMiB);
  writer.waits = writer.evicts = true;
  const ClaimPlan more = plan(writer, 4 * kMiB, {peer(kCapacity - 7 * kMiB)});
  EXPECT_EQ(more.unclaimed_bytes, 2 * kMiB);
  EXPECT_EQ(more.target_bytes, 6 * kMiB);
  PeerFigures rich = peer(kCapacity - 7 * kMiB);
  rich.wish_bytes = rich.claim_bytes + 8 * kMiB;
  EXPECT_EQ(plan(writer, 4 * kMiB, {rich}).target_bytes, 6 * kMiB) << "a node with less than its share comes first";
  rich.claim_bytes = rich.physical_bytes = kCapacity - 11 * kMiB;
  rich.wish_bytes = rich.claim_bytes + 2 * kMiB;
  PeerFigures as_poor = peer(4 * kMiB);
  as_poor.wish_bytes = as_poor.claim_bytes + less_bytes(plan(writer, 4 * kMiB, {rich, as_poor}).wish_bytes, 4 * kMiB);
  EXPECT_EQ(plan(writer, 4 * kMiB, {rich, as_poor}).target_bytes, 5 * kMiB) << "one that lacks as much gets as much";
  EXPECT_EQ(plan(writer, 4 * kMiB, {peer(kCapacity - 4 * kMiB)}).target_bytes, 4 * kMiB);
}

TEST(Claims, ANodeAboveItsShareGivesWhatItEvictsToThoseBelow) {
  OwnFigures writer = own(50 * kMiB);
  writer.evicts = writer.waits = true;
  writer.evictable_by_age[3] = 40 * kMiB;
  PeerFigures poor = peer(12 * kMiB);
  poor.wish_bytes = 20 * kMiB;
  const ClaimPlan gives = plan(writer, 50 * kMiB, {poor});
  EXPECT_GT(gives.wish_bytes, 50 * kMiB);
  EXPECT_GT(gives.evict_bytes, 4 * kMiB);
  EXPECT_LT(gives.target_bytes, 46 * kMiB) << "although it wishes for more";
  EXPECT_GE(gives.target_bytes, 50 * kMiB - gives.evict_bytes);
  writer.evictable_by_age = {};
  EXPECT_EQ(plan(writer, 50 * kMiB, {poor}).target_bytes, 50 * kMiB) << "what the others have is older";
}

TEST(Claims, WhatIsGatheredForACallIsNotGivenToThoseBelowTheirShare) {
  OwnFigures caller = own(20 * kMiB);
  caller.evicts = caller.waits = true;
  PeerFigures poor = peer(12 * kMiB);
  poor.wish_bytes = 24 * kMiB;
  caller.lacking_bytes = kMiB;
  EXPECT_GE(plan(caller, 48 * kMiB, {poor}).target_bytes, 48 * kMiB);
  caller.lacking_bytes = 0;
  const ClaimPlan gives = plan(caller, 48 * kMiB, {poor});
  EXPECT_LT(gives.target_bytes, 48 * kMiB);
  EXPECT_GE(gives.target_bytes, gives.wish_bytes) << "what it has beyond that";
}

TEST(Claims, WhatIsOldestOfAllGoes) {
  OwnFigures writer = own(20 * kMiB);
  writer.waits = true;  // it wishes for 8 MiB more
  writer.evictable_by_age[1] = 18 * kMiB;
  PeerFigures idle = peer(43 * kMiB);
  idle.evictable_by_age[6] = 40 * kMiB;
  const ClaimPlan of_writer = plan(writer, 20 * kMiB, {idle});
  EXPECT_EQ(of_writer.evict_bytes, 0u) << "what the other has is older";
  EXPECT_TRUE(of_writer.others_make_room);
  // The same from the other node's side.
  OwnFigures as_idle = own(43 * kMiB);
  as_idle.evictable_by_age[6] = 40 * kMiB;
  PeerFigures as_writer = peer(20 * kMiB);
  as_writer.wish_bytes = of_writer.wish_bytes;
  as_writer.evictable_by_age[1] = 18 * kMiB;
  const uint64_t lacking = of_writer.wish_bytes + 43 * kMiB + kGrain - kCapacity + kCapacity / 64;
  EXPECT_EQ(plan(as_idle, 44 * kMiB, {as_writer}).evict_bytes, std::min(lacking, kCapacity / 8));
}

TEST(Claims, TheSharesOfAllMakeUpWhatIsLacking) {
  std::vector<PeerFigures> all;
  for (const uint64_t mib : {3, 9, 12}) {
    PeerFigures each = peer(21 * kMiB);
    each.evictable_by_age[3] = mib * kMiB;
    each.evictable_by_age[9] = kMiB / 2;
    all.push_back(each);
  }
  uint64_t sum = 0;
  std::vector<uint64_t> parts;
  for (size_t at = 0; at < all.size(); ++at) {
    OwnFigures me = own(21 * kMiB);
    me.evictable_by_age = all[at].evictable_by_age;
    std::vector<PeerFigures> others = all;
    others.erase(others.begin() + static_cast<ptrdiff_t>(at));
    parts.push_back(plan(me, 22 * kMiB, others).evict_bytes);
    sum += parts.back();
  }
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(3 * kMiB), 4096) << "3 x 22 MiB are wished for, of 64, and one is spare";
  EXPECT_NEAR(static_cast<double>(parts[1] - kMiB / 2), static_cast<double>(3 * (parts[0] - kMiB / 2)), 4096) << "of one age each gives by what it has";
}

TEST(Claims, ASilentNodeCountsAndGivesNothing) {
  PeerFigures dead = peer(40 * kMiB, Life::kSilent);
  dead.evictable_by_age[20] = 40 * kMiB;
  OwnFigures writer = own(22 * kMiB);
  writer.waits = true;
  writer.evictable_by_age[2] = 20 * kMiB;
  const ClaimPlan left = plan(writer, 22 * kMiB, {dead});
  EXPECT_EQ(left.unclaimed_bytes, kMiB);
  EXPECT_FALSE(left.others_make_room);
  EXPECT_GT(left.evict_bytes, 0u);
  // No other node makes room for one that claims more than there is.
  dead.claim_bytes = kUnknownClaim;
  OwnFigures small = own(8 * kMiB);
  small.evictable_by_age[2] = 8 * kMiB;
  const ClaimPlan beside = plan(small, 8 * kMiB, {dead});
  EXPECT_EQ(beside.evict_bytes, 0u);
  EXPECT_EQ(beside.target_bytes, 8 * kMiB);
}

TEST(Claims, WithoutEvictionAWishIsNotMet) {
  OwnFigures writer = own(20 * kMiB);
  writer.waits = true;
  const ClaimPlan full = plan(writer, 20 * kMiB, {peer(43 * kMiB)});
  EXPECT_EQ(full.evict_bytes, 0u);
  EXPECT_FALSE(full.others_make_room);
  PeerFigures larger = peer(30 * kMiB);
  larger.claim_bytes = 44 * kMiB;
  EXPECT_TRUE(plan(writer, 20 * kMiB, {larger}).others_make_room) << "it does not need what it claims";
}

// The node's own capacity is larger, until it has read of this one: it claims and wishes for a part of its own.
TEST(Claims, WhatOneThatBeginsClaimsBeyondTheCapacityOfAllComesBack) {
  OwnFigures writer = own(14 * kMiB);
  writer.waits = true;
  PeerFigures begins = peer(0);
  begins.capacity_bytes = 200 * kGiB;
  begins.claim_bytes = 50 * kMiB;
  begins.wish_bytes = 50 * kMiB;
  EXPECT_FALSE(plan(writer, 14 * kMiB, {begins}).others_make_room);
  begins.wish_bytes = 200 * kMiB;
  EXPECT_TRUE(plan(writer, 14 * kMiB, {begins}).others_make_room) << "a call is not refused for that";
}

TEST(Claims, TheLeastCapacityCounts) {
  PeerFigures careful = peer(kMiB);
  careful.capacity_bytes = kVolume / 2;
  EXPECT_EQ(plan(own(kMiB), kMiB, {careful}).capacity_bytes, kVolume / 2);
  careful.life = Life::kSilent;
  const ClaimPlan unsure = plan(own(40 * kMiB), 41 * kMiB, {careful});
  EXPECT_EQ(unsure.capacity_bytes, kVolume) << "nothing goes for one that may be gone";
  EXPECT_EQ(unsure.claimable_bytes, kCapacity) << "for ever, perhaps";
  EXPECT_EQ(unsure.evict_bytes, 0u);
  EXPECT_GT(unsure.target_bytes, 41 * kMiB);
  careful.life = Life::kMayLive;
  EXPECT_EQ(plan(own(40 * kMiB), 41 * kMiB, {careful}).claimable_bytes, kCapacity / 2) << "nothing is claimed that it may not allow";
  careful.life = Life::kAbsent;
  EXPECT_EQ(plan(own(kMiB), kMiB, {careful}).claimable_bytes, kCapacity);
}

// A tended node has bodies older than any of the living nodes: those go, and nothing is claimed for it.
TEST(Claims, WhatDoesNotGrowGivesWhatIsOldestOfAll) {
  OwnFigures tended = own(30 * kMiB);
  tended.grows = false;
  tended.capacity_bytes = 0;
  tended.evicts = true;
  tended.evictable_by_age[20] = 30 * kMiB;
  PeerFigures writer = peer(33 * kMiB);
  writer.evictable_by_age[3] = 33 * kMiB;
  const ClaimPlan enough = plan(tended, 30 * kMiB, {writer});
  EXPECT_FALSE(enough.is_short);
  EXPECT_EQ(enough.evict_bytes, 0u);
  writer.wish_bytes = 38 * kMiB;
  const ClaimPlan lacking = plan(tended, 30 * kMiB, {writer});
  EXPECT_TRUE(lacking.is_short);
  EXPECT_GE(lacking.evict_bytes, 4 * kMiB);
  EXPECT_EQ(lacking.target_bytes, 30 * kMiB);
  EXPECT_EQ(lacking.wish_bytes, 30 * kMiB);
  // The writer itself need not give anything then.
  OwnFigures itself = own(33 * kMiB);
  itself.evicts = itself.waits = true;
  itself.lacking_bytes = 5 * kMiB;
  itself.evictable_by_age[3] = 33 * kMiB;
  PeerFigures old = peer(30 * kMiB);
  old.capacity_bytes = 0;
  old.claim_bytes = old.wish_bytes = 30 * kMiB;
  old.evictable_by_age[20] = 30 * kMiB;
  const ClaimPlan waits = plan(itself, 33 * kMiB, {old});
  EXPECT_TRUE(waits.is_short);
  EXPECT_EQ(waits.evict_bytes, 0u);
  EXPECT_TRUE(waits.others_make_room);
  tended.evicts = false;
  EXPECT_EQ(plan(tended, 30 * kMiB, {writer}).evict_bytes, 0u);
}

TEST(Claims, WhatDoesNotGrowHoldsWhatItUsesAndGoesByTheCapacityOfOthers) {
  OwnFigures tended = own(8 * kMiB);
  tended.grows = false;
  tended.capacity_bytes = 0;
  for (const auto& peers : {std::vector<PeerFigures>{}, std::vector{peer(50 * kMiB)}}) {
    const ClaimPlan held = plan(tended, 8 * kMiB, peers);
    EXPECT_EQ(held.target_bytes, 8 * kMiB);
    EXPECT_EQ(held.wish_bytes, 8 * kMiB);
    EXPECT_EQ(held.evict_bytes, 0u);
    EXPECT_EQ(held.capacity_bytes, peers.empty() ? UINT64_MAX : kVolume);
  }
  PeerFigures as_others_see_it = peer(8 * kMiB);
  as_others_see_it.capacity_bytes = 0;
  EXPECT_EQ(plan(own(kMiB), kMiB, {as_others_see_it}).capacity_bytes, kVolume);
}

TEST(Claims, BeyondTheCapacityAllEvictAndNobodyRaises) {
  OwnFigures restarted = own(40 * kMiB);
  restarted.evictable_by_age[4] = 30 * kMiB;
  PeerFigures other = peer(40 * kMiB);
  other.evictable_by_age[4] = 30 * kMiB;
  const ClaimPlan over = plan(restarted, 40 * kMiB, {other});
  EXPECT_EQ(over.target_bytes, 40 * kMiB - over.evict_bytes) << "what comes back is not used anew";
  EXPECT_EQ(over.unclaimed_bytes, 0u);
  EXPECT_EQ(over.evict_bytes, kCapacity / 16) << "half of the most that goes at once";
}

TEST(Claims, WhatIsNotUsedIsGivenUpWhereOthersLackIt) {
  PeerFigures poor = peer(40 * kMiB);
  poor.wish_bytes = 48 * kMiB;
  EXPECT_EQ(plan(own(10 * kMiB), 24 * kMiB, {poor}).target_bytes, 11 * kMiB + (kCapacity - 64 * kMiB));
  OwnFigures dying = own(20 * kMiB);
  dying.used_soon_bytes = 10 * kMiB;
  EXPECT_EQ(plan(dying, 24 * kMiB, {poor}).target_bytes, 20 * kMiB) << "no more than was given back";
}

TEST(Claims, WhoEvictsNothingForOthersHasWhatItRemovedItself) {
  PeerFigures poor = peer(32 * kMiB);
  poor.wish_bytes = poor.claim_bytes + 4 * kMiB;
  OwnFigures removes = own(31 * kMiB);
  removes.used_soon_bytes = 29 * kMiB;
  EXPECT_EQ(plan(removes, 31 * kMiB, {poor}).target_bytes, 31 * kMiB);
  removes.evictable_by_age[3] = 29 * kMiB;
  EXPECT_LT(plan(removes, 31 * kMiB, {poor}).target_bytes, 29 * kMiB);
}

// The capacity was lowered, and both have claimed much ahead under the one before.
TEST(Claims, NothingIsWrittenIntoClaimsThatDoNotFitTogether) {
  OwnFigures writer = own(20 * kMiB);
  writer.capacity_bytes = 33 * kMiB;
  writer.waits = true;
  writer.evictable_by_age[2] = 18 * kMiB;
  PeerFigures other = peer(10 * kMiB);
  other.claim_bytes = 30 * kMiB;
  other.evictable_by_age[6] = 8 * kMiB;
  const ClaimPlan cut = plan(writer, 30 * kMiB, {other});
  EXPECT_LE(cut.target_bytes, 20 * kMiB - cut.evict_bytes);
  other.claim_bytes = 13 * kMiB;
  EXPECT_EQ(plan(writer, 20 * kMiB, {other}).target_bytes, 20 * kMiB) << "as soon as they fit";
  EXPECT_EQ(plan(writer, 21 * kMiB, {other}).target_bytes, 20 * kMiB) << "no more than is too much";
  PeerFigures unknown;
  unknown.claim_bytes = kUnknownClaim;
  unknown.life = Life::kMayLive;
  EXPECT_EQ(plan(writer, 21 * kMiB, {unknown}).target_bytes, 21 * kMiB) << "one that is just found takes nothing from anybody";
}

TEST(Claims, WhoEvictsNothingTakesNoMoreThanItsShareFromThoseWhoDo) {
  OwnFigures hoards = own(31 * kMiB);
  hoards.waits = true;
  hoards.lacking_bytes = kMiB;
  PeerFigures evicts = peer(31 * kMiB);
  evicts.evictable_by_age[6] = 30 * kMiB;
  EXPECT_EQ(plan(hoards, 31 * kMiB, {evicts}).wish_bytes, 32 * kMiB) << "the half";
  hoards = own(40 * kMiB);
  hoards.waits = true;
  hoards.lacking_bytes = kMiB;
  evicts = peer(23 * kMiB);
  evicts.evictable_by_age[6] = 20 * kMiB;
  EXPECT_EQ(plan(hoards, 40 * kMiB, {evicts}).wish_bytes, 40 * kMiB) << "nothing goes for it";
  EXPECT_EQ(plan(hoards, 40 * kMiB, {evicts}).target_bytes, 40 * kMiB);
  evicts = peer(15 * kMiB);
  evicts.evictable_by_age[6] = 14 * kMiB;
  EXPECT_EQ(plan(hoards, 40 * kMiB, {evicts}).target_bytes, 40 * kMiB) << "what the other leaves unclaimed between two bursts is not for it";
  EXPECT_GT(plan(hoards, 40 * kMiB, {peer(15 * kMiB)}).target_bytes, 40 * kMiB) << "of those who evict nothing who comes first has it";
  evicts = peer(kMiB);
  evicts.evictable_by_age[6] = kMiB;
  EXPECT_GT(plan(hoards, 40 * kMiB, {evicts}).target_bytes, 40 * kMiB) << "else nobody has it";
  hoards.evictable_by_age[5] = 39 * kMiB;
  hoards.evicts = true;
  evicts = peer(23 * kMiB);
  evicts.evictable_by_age[6] = 20 * kMiB;
  EXPECT_GT(plan(hoards, 40 * kMiB, {evicts}).wish_bytes, 40 * kMiB) << "it gives back what others lack";
}

TEST(Claims, WhatIsRemovedMakesRoomForAsMuchAgainWhereNothingIsEvicted) {
  OwnFigures writer = own(31 * kMiB);
  writer.waits = true;
  writer.lacking_bytes = 16 * kKiB;
  EXPECT_EQ(plan(writer, 31 * kMiB, {peer(32 * kMiB)}).target_bytes, 31 * kMiB + 16 * kKiB) << "of what is left to newcomers";
  EXPECT_EQ(plan(writer, 32 * kMiB, {peer(32 * kMiB)}).target_bytes, 32 * kMiB) << "but not all of that";
  writer.lacking_bytes = kMiB;
  EXPECT_EQ(plan(writer, 31 * kMiB, {peer(32 * kMiB)}).target_bytes, 31 * kMiB);
}

TEST(Claims, WhatACallLacksIsWishedForThoughMuchIsLeft) {
  OwnFigures caller = own(kMiB);
  caller.waits = true;
  const std::vector<PeerFigures> peers = {peer(kMiB)};
  const uint64_t claim = plan(caller, kMiB, peers).target_bytes;
  EXPECT_LT(claim, 20 * kMiB);
  caller.lacking_bytes = 40 * kMiB - (claim - kMiB);  // a call for 40 MiB
  const ClaimPlan lacks = plan(caller, claim, peers);
  EXPECT_GE(lacks.wish_bytes, 41 * kMiB);
  EXPECT_GE(lacks.target_bytes, 41 * kMiB);
  EXPECT_EQ(lacks.evict_bytes, 0u);
  caller.lacking_bytes = 1000 * kMiB;
  EXPECT_EQ(plan(caller, claim, peers).wish_bytes, kCapacity - 2 * kMiB) << "others evict nothing for who evicts nothing";
  caller.evicts = true;
  EXPECT_EQ(plan(caller, claim, peers).wish_bytes, kCapacity);
}

}  // namespace claims_test
}  // namespace kvcachefs
