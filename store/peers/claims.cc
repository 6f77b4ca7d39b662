#include "store/peers/claims.h"

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kAheadSeconds = 5;   // of writing, by which a claim is ahead of what is used: until the others have read a wish, and given back
constexpr uint64_t kAheadPart = 4;      // ... at most this part of what the living nodes can have, for all nodes together
constexpr uint64_t kAloneAheadPart = 12;  // the same where no other node lives: only this node uses the rest of the volume
constexpr uint64_t kSparePart = 8;      // of the unclaimed bytes, for all nodes together: claimed ahead for a burst
constexpr uint64_t kSlackPart = 64;     // of what the living nodes can have: evicted beyond what is lacking, so that eviction does not run every second
constexpr uint64_t kMostAtOncePart = 8; // ... at most this part in one go, for views are old; the next look is one to two seconds later

using Life = PeerFigures::Life;

struct Capacity {
  uint64_t now_bytes, claimable_bytes;
};

Capacity least_capacity(const OwnFigures& own, std::span<const PeerFigures> peers) {
  const uint64_t of_own = own.capacity_bytes == 0 ? UINT64_MAX : own.capacity_bytes;
  Capacity least{of_own, of_own};
  for (const PeerFigures& peer : peers) {
    if (peer.capacity_bytes == 0 || (peer.life != Life::kLives && peer.life != Life::kMayLive)) continue;
    least.claimable_bytes = std::min(least.claimable_bytes, peer.capacity_bytes);
    if (peer.life == Life::kLives) least.now_bytes = std::min(least.now_bytes, peer.capacity_bytes);
  }
  return least;
}

// This node's part of what all evict. What is lacking goes from the oldest bytes of all nodes on, up to an age that is the same for all. Within
// the age class in which that ends every node gives the same share.
uint64_t part_of(uint64_t lacking_bytes, const OwnFigures& own, std::span<const PeerFigures> peers) {
  uint64_t before = 0, part = 0;
  for (size_t age = kAgeClasses; age-- > 0 && before < lacking_bytes;) {
    uint64_t all = own.evictable_by_age[age];
    for (const PeerFigures& peer : peers)
      if (peer.life == Life::kLives) all = add_bytes(all, peer.evictable_by_age[age]);
    if (all == 0) continue;
    const uint64_t wanted = std::min(all, lacking_bytes - before);
    part += static_cast<uint64_t>(static_cast<double>(own.evictable_by_age[age]) * (static_cast<double>(wanted) / static_cast<double>(all)));
    before += wanted;
  }
  return part;
}

// A silent node cannot give back: nobody can evict for what it claims beyond the capacity.
uint64_t demand_of(const PeerFigures& peer, uint64_t capacity_bytes) {
  if (peer.life == Life::kLives) return peer.wish_bytes;
  return peer.taken_bytes() <= capacity_bytes ? peer.taken_bytes() : peer.physical_bytes;
}

// What a node that begins beside this one, and was alone until a moment ago, gives back once it has seen this one, by what it tells.
uint64_t may_come_back(const PeerFigures& peer, uint64_t capacity_bytes) {
  if (peer.life != Life::kMayLive) return 0;
  return less_bytes(demand_of(peer, capacity_bytes), std::max(peer.physical_bytes, peer.wish_bytes));
}

bool evicts(const PeerFigures& peer) {
  return peer.life == Life::kLives && std::ranges::any_of(peer.evictable_by_age, [](uint64_t bytes) { return bytes > 0; });
}

// A node that begins goes by its own capacity until it has read of a smaller one. So a wish beyond the capacity of all comes from such a node,
// which will give back what it claimed by it.
bool makes_room(const PeerFigures& peer, uint64_t capacity_bytes) {
  if (peer.life == Life::kMayLive || evicts(peer)) return true;
  const uint64_t wish_bytes = peer.wish_bytes > capacity_bytes ? 0 : peer.wish_bytes;
  return peer.life == Life::kLives && peer.claim_bytes > std::max(wish_bytes, peer.physical_bytes);
}

// Where nothing is evicted, a removal makes room for as much again, although the records of both take a little. That little is lent from what is
// left to newcomers, but not the last of it.
void lend_a_little(uint64_t lacking_bytes, uint64_t claim_bytes, uint64_t taken_bytes, ClaimPlan& plan) {
  const uint64_t lends = left_to_newcomers(plan.capacity_bytes) / 2, needed = add_bytes(taken_bytes, lacking_bytes);
  if (lacking_bytes == 0 || plan.target_bytes >= claim_bytes + lacking_bytes || needed > plan.claimable_bytes + lends) return;
  plan.claimable_bytes = std::max(plan.claimable_bytes, needed);
  plan.target_bytes = claim_bytes + lacking_bytes;
  plan.wish_bytes = std::max(plan.wish_bytes, plan.target_bytes);
}

// The sum, over the living nodes below their share of what the living can have, of what each lacks up to that share.
uint64_t lack_below_share(std::span<const PeerFigures> peers, uint64_t share_bytes) {
  uint64_t lack = 0;
  for (const PeerFigures& peer : peers)
    if (peer.life == Life::kLives) lack = add_bytes(lack, less_bytes(std::min(peer.wish_bytes, share_bytes), peer.claim_bytes));
  return lack;
}

// ... and over the others, of what each lacks beyond being `ahead_bytes` ahead of its writers: for a call that needs much at once.
uint64_t lack_above_share(std::span<const PeerFigures> peers, uint64_t share_bytes, uint64_t ahead_bytes) {
  uint64_t lack = 0;
  for (const PeerFigures& peer : peers)
    if (peer.life == Life::kLives && peer.claim_bytes >= share_bytes) lack = add_bytes(lack, less_bytes(peer.wish_bytes, add_bytes(peer.claim_bytes, ahead_bytes)));
  return lack;
}

// By how much all claims together exceed the capacity: it was lowered, or a node began where nothing was left.
uint64_t excess_of(uint64_t claim_bytes, std::span<const PeerFigures> peers, uint64_t capacity_bytes) {
  uint64_t taken = claim_bytes;
  for (const PeerFigures& peer : peers)
    if (peer.taken_bytes() != kUnknownClaim) taken = add_bytes(taken, peer.taken_bytes());
  return less_bytes(taken, capacity_bytes);
}

}  // namespace

uint64_t claim_grain(uint64_t capacity_bytes) {
  constexpr uint64_t kPart = 1024, kSmallPart = 64;
  return std::max({capacity_bytes / kPart, std::min<uint64_t>(kGiB, capacity_bytes / kSmallPart), kBlockBytes});
}

uint64_t lone_grain(uint64_t capacity_bytes) {
  constexpr uint64_t kPart = 16, kSmallPart = 4, kFew = 256 * kMiB;
  return std::max(capacity_bytes / kPart, std::min(kFew, capacity_bytes / kSmallPart));
}

uint64_t left_to_newcomers(uint64_t capacity_bytes) {
  constexpr uint64_t kPart = 33, kMost = 16 * kMiB;
  return std::min(capacity_bytes / kPart, kMost);
}

uint64_t left_by_lone(uint64_t capacity_bytes) {
  constexpr uint64_t kPart = 33, kMost = 4 * kMiB;
  return std::min(capacity_bytes / kPart, kMost);
}

ClaimPlan plan_claim(const OwnFigures& own, uint64_t claim_bytes, std::span<const PeerFigures> peers) {
  ClaimPlan plan;
  const auto [all, claimable] = least_capacity(own, peers);
  const uint64_t capacity = all - left_to_newcomers(all);
  plan.capacity_bytes = all;
  plan.claimable_bytes = !peers.empty() ? claimable - left_to_newcomers(claimable) : own.evicts ? all - left_by_lone(all) : all;
  const uint64_t grain = claim_grain(capacity);
  const uint64_t most_here = peers.empty() ? plan.claimable_bytes : all;
  const auto living = static_cast<uint64_t>(1 + std::ranges::count(peers, Life::kLives, &PeerFigures::life));
  const bool competes = living > 1 || std::ranges::find(peers, Life::kMayLive, &PeerFigures::life) != peers.end();

  uint64_t taken = 0, demand = 0, others_lack = 0, out_of_reach = 0, may_come = 0;
  for (const PeerFigures& peer : peers) {
    taken = add_bytes(taken, peer.taken_bytes());
    demand = add_bytes(demand, demand_of(peer, capacity));
    may_come = add_bytes(may_come, may_come_back(peer, capacity));
    plan.others_make_room |= makes_room(peer, all);
    if (peer.life != Life::kLives) out_of_reach = add_bytes(out_of_reach, demand_of(peer, capacity));
    if (peer.life == Life::kLives) others_lack = add_bytes(others_lack, less_bytes(peer.wish_bytes, peer.claim_bytes));
  }
  plan.unclaimed_bytes = less_bytes(plan.claimable_bytes, add_bytes(taken, claim_bytes));
  plan.others_lack = others_lack > plan.unclaimed_bytes;
  const uint64_t reach = less_bytes(capacity, out_of_reach);  // of the living nodes
  const uint64_t share = reach / living;
  // The shortage once this node has its wish, and this node's own part of it.
  const auto look_for_shortage = [&] {
    demand = add_bytes(demand, plan.wish_bytes);
    plan.is_short = demand > capacity;
    const bool may_end = demand - may_come <= capacity && !own.waits && !plan.others_lack;
    if (!plan.is_short || may_end) return;
    const uint64_t lacking = std::min(demand - capacity + reach / kSlackPart, reach / kMostAtOncePart);
    plan.evict_bytes = part_of(lacking, own, peers);
  };
  if (!own.grows) {
    plan.wish_bytes = own.used_soon_bytes;
    plan.target_bytes = own.used_bytes;
    if (own.evicts) look_for_shortage();
    return plan;
  }

  const uint64_t most_ahead = reach / (competes || peers.empty() ? kAheadPart * living : kAloneAheadPart), writing = kAheadSeconds * own.written_per_s;
  const uint64_t left = less_bytes(claim_bytes, add_bytes(own.used_bytes, own.wanted_bytes));
  uint64_t ahead = own.waits ? std::max(most_ahead, std::min(grain, capacity)) : std::min(std::max(writing, grain), std::max(most_ahead, grain));
  if (own.lacking_bytes > 0) ahead = std::max(ahead, std::min(add_bytes(left, own.lacking_bytes) + most_ahead, capacity));
  plan.wish_bytes = std::min(add_bytes(own.used_soon_bytes, ahead), peers.empty() ? most_here : capacity);
  // A node that evicts nothing may hold, beyond its share, what is unclaimed, but not what others leave unclaimed between two bursts: it never gives that back.
  uint64_t most_kept = UINT64_MAX;
  if (competes && !own.evicts) {
    const uint64_t left_to_others = most_ahead * static_cast<uint64_t>(std::ranges::count_if(peers, evicts));
    most_kept = std::max({share, add_bytes(claim_bytes, less_bytes(plan.unclaimed_bytes, left_to_others)), own.used_soon_bytes});
    plan.wish_bytes = std::min(plan.wish_bytes, most_kept);
  }

  look_for_shortage();

  // Bytes beyond the wish are claimed only while no node lacks them.
  const bool lacks_any = plan.is_short && !peers.empty();
  const uint64_t spare = lacks_any ? 0 : competes ? plan.unclaimed_bytes / (kSparePart * living) : lone_grain(capacity);
  const uint64_t least = std::max(own.used_bytes, plan.wish_bytes);
  uint64_t most = std::min({add_bytes(least, spare), std::max(own.used_bytes, most_here), std::max(own.used_bytes, most_kept)});
  // What this node evicts for those who lack room is not used anew by its own writers.
  const uint64_t given = lacks_any ? std::min(plan.evict_bytes, less_bytes(others_lack, plan.unclaimed_bytes)) : 0;
  if (given > 0) most = std::min(most, less_bytes(plan.wish_bytes, given));
  // ... also while they wish for more, if this node has more than its share and those have less: else its writers would use all that is evicted.
  // (One that evicts nothing gives nothing, and may have what is left: see most_kept. Neither does one that gathers for a call that needs much at once.)
  const uint64_t left_to_poor = own.evicts && own.lacking_bytes == 0 && claim_bytes > share ? lack_below_share(peers, share) : 0;
  if (left_to_poor > plan.unclaimed_bytes)
    most = std::min(most, std::max({less_bytes(claim_bytes, left_to_poor - plan.unclaimed_bytes), share, less_bytes(own.used_soon_bytes, plan.evict_bytes)}));
  plan.target_bytes = claim_bytes;
  if (claim_bytes > add_bytes(most, lacks_any || left_to_poor > plan.unclaimed_bytes ? 0 : std::max(grain, ahead / 2))) plan.target_bytes = most;
  // Each node takes a part of the unclaimed bytes by what it lacks, so that they do not all reach for the same.
  const uint64_t more_wanted = less_bytes(most, claim_bytes), lacks = less_bytes(least, claim_bytes);
  const uint64_t rivals_lack = own.evicts && claim_bytes < share ? add_bytes(lack_below_share(peers, share), lack_above_share(peers, share, most_ahead)) : others_lack;
  const double part = rivals_lack == 0 ? 1 : static_cast<double>(lacks) / (static_cast<double>(lacks) + static_cast<double>(rivals_lack));
  const uint64_t more = std::min({more_wanted, static_cast<uint64_t>(static_cast<double>(plan.unclaimed_bytes) * part),
                                  less_bytes(plan.unclaimed_bytes, left_to_poor)});
  const uint64_t goal = add_bytes(ahead, std::min(spare, plan.unclaimed_bytes));
  const bool is_low = own.lacking_bytes > 0 || left <= goal - goal / 4;
  const uint64_t worth_it = own.waits ? (competes ? grain / 16 : 1) : grain / 4;
  if (more_wanted > 0 && is_low && more >= std::min(more_wanted, worth_it)) plan.target_bytes = claim_bytes + more;
  if (!peers.empty() && !own.evicts && own.lacking_bytes <= grain / 4) lend_a_little(own.lacking_bytes, claim_bytes, add_bytes(taken, claim_bytes), plan);
  // Nobody writes more into claims that do not fit together, whatever the others have read of it.
  if (const uint64_t excess = excess_of(claim_bytes, peers, all); excess > 0)
    plan.target_bytes = std::min(plan.target_bytes, std::max(less_bytes(claim_bytes, excess), less_bytes(own.used_soon_bytes, plan.evict_bytes)));
  plan.low_bytes = goal / 2;
  return plan;
}

}  // namespace kvcachefs
