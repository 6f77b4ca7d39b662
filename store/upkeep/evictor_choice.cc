// Which units may be evicted, and which are evicted next.
#include <algorithm>

#include "store/base/units.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

using evict::Hold;
using evict::kNoSlot;
using evict::UnitKey;

namespace {
constexpr int64_t kJustWrittenMs = 2'000;
constexpr int64_t kSidecarMs = 250;  // until the sidecar of a body that was just renamed is there, too
constexpr int64_t kRefusedMs = 500;  // refused because open, or not whole yet
constexpr size_t kLeastRemembered = 1'024, kMostRemembered = 1 << 20, kForgottenAtOnce = 16;  // evicted units to remember
}  // namespace

int64_t Evictor::stays_ms(bool looked, Leases leases) const {
  const int64_t lease = lease_ms();
  switch (leases) {
    case Leases::kKeep:
    case Leases::kListed: return lease;
    case Leases::kSettled: return looked ? lease : std::min(lease, kJustWrittenMs);
    case Leases::kHalf: return looked ? lease / 2 : std::min(lease / 2, kKernelKnowsMs);
    case Leases::kQuarter: return looked ? lease / 4 : std::min(lease / 4, kKernelKnowsMs);
    case Leases::kPaired: return looked ? lease / 4 : std::min(lease / 4, kSidecarMs);
    case Leases::kEighth: return looked ? lease / 8 : 0;
    case Leases::kBreak: return 0;
  }
  return lease;
}

bool Evictor::is_used_lately(const Entry& entry, int64_t now, Leases leases) const {
  return ms_since(entry.used, now) < stays_ms(entry.is(kLooked), leases);
}

bool Evictor::is_leased(const Entry& entry, int64_t now, Leases leases) const {
  if (is_used_lately(entry, now, leases)) return true;
  if (leases != Leases::kKeep || entry.listed == 0) return false;
  return static_cast<uint16_t>(listed_tick(now - origin_ms_) - entry.listed) * kListedTickMs < lease_ms();
}

// True if it was probed or opened within the lease.
bool Evictor::is_promised(UnitKey unit, int64_t now, const Entry* as) const {
  return table_.any_of(unit, [&](const Entry& member) {
    const Entry& entry = as != nullptr && as->id == member.id ? *as : member;
    return entry.is(kLooked) && is_used_lately(entry, now, Leases::kKeep);
  });
}

Hold Evictor::hold_of(UnitKey unit, int64_t now, Leases leases, const Entry* as) const {
  if (going_.contains(unit)) return Hold::kOther;
  if (const auto refused = refused_.find(unit); refused != refused_.end() && refused->second > now) return Hold::kOther;
  Hold hold = Hold::kNone;
  for (uint32_t slot = table_.first_of(unit); slot != kNoSlot; slot = table_.at(slot).next) {
    const Entry& entry = as != nullptr && as->id == table_.at(slot).id ? *as : table_.at(slot);
    if (entry.is(kPinned)) return Hold::kPinned;
    if (is_leased(entry, now, leases)) hold = Hold::kLeased;
  }
  return hold;
}

Evictor::Victim Evictor::victim_of(UnitKey unit, int64_t now) const {
  Victim victim{.unit = unit, .members = {}};
  for (uint32_t slot = table_.first_of(unit); slot != kNoSlot; slot = table_.at(slot).next) {
    const Entry& entry = table_.at(slot);
    victim.members.push_back({entry.id, table_.directory_at(entry.directory).id, entry.cookie});
    victim.bytes += entry.blocks * kBlockBytes;
    const int64_t unused_ms = ms_since(entry.used, now);
    victim.unused_ms = victim.members.size() == 1 ? unused_ms : std::min(victim.unused_ms, unused_ms);
    victim.known |= unused_ms < 2 * kKernelKnowsMs;
  }
  return victim;
}

std::vector<Evictor::Victim> Evictor::choose(uint64_t bytes, size_t most, Leases leases) {
  constexpr int kMostBusy = 64;
  constexpr size_t kMostOfAChain = 64;
  const int64_t now = now_ms();
  std::vector<Victim> victims;
  std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return victims;
  let_grow_up(false, now);
  const evict::HeldBy held = [&](UnitKey unit) { return hold_of(unit, now, leases); };
  uint64_t got = 0;
  int busy = 0;
  while (got < bytes && victims.size() < most) {
    evict::Ask ask;
    ask.now = {now};
    ask.max_units = std::min(kMostOfAChain, most - victims.size());
    ask.break_leases = leases == Leases::kBreak;
    ask.held = &held;
    chosen_.clear();
    const evict::Choice choice = policy_->choose(ask, chosen_);
    if (chosen_.empty()) {
      if (choice.reason == evict::Reason::kBusy && ++busy < kMostBusy) continue;
      if (let_grow_up(true, now)) continue;
      // A listing a moment ago may hold all ends of chains: breaking such leases is better than cutting all chains.
      const bool listed = leases == Leases::kKeep && now - listed_ms_.load(std::memory_order_relaxed) < lease_ms();
      if (++busy < kMostBusy && !listed && policy_->part_chains(ask)) continue;  // cutting is better than breaking leases
      break;
    }
    for (const UnitKey unit : chosen_) {
      if (got >= bytes) break;
      const bool broken = is_promised(unit, now);
      if (!going_.emplace(unit, broken).second) continue;
      victims.push_back(victim_of(unit, now));
      victims.back().lease_broken = broken;
      got += victims.back().bytes;
    }
  }
  return victims;
}

std::optional<Evictor::Victim> Evictor::choose_cheap(ObjectId id, double factor) {
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  const uint32_t slot = state_ == State::kReady ? table_.find(id) : kNoSlot;
  if (slot == kNoSlot || table_.at(slot).is(kYoung | kAside)) return std::nullopt;
  const UnitKey unit = table_.at(slot).unit;
  if (hold_of(unit, now, Leases::kKeep) != Hold::kNone || !policy_->worth_little(unit, factor, {now})) return std::nullopt;
  going_.emplace(unit, false);
  return victim_of(unit, now);
}

std::vector<Evictor::Victim> Evictor::choose_stranded(size_t most) {
  const int64_t now = now_ms();
  std::vector<Victim> victims;
  std::lock_guard lock(mutex_);
  for (size_t n = std::min(stranded_.size(), most); n > 0; --n) {
    const Stranded one = stranded_.front();
    stranded_.pop_front();
    const uint32_t slot = table_.find(one.id);
    if (slot == kNoSlot || !table_.at(slot).is(kStranded)) continue;
    Entry& entry = table_.at(slot);
    if (entry.cookie != one.cookie || has_body(entry, one.body_cookie)) {  // renamed, or its body came back
      entry.set(kStranded, false);
      continue;
    }
    stranded_.push_back(one);
    if (entry.is(kPinned) || !going_.emplace(entry.unit, false).second) continue;
    victims.push_back({.unit = entry.unit, .members = {{entry.id, table_.directory_at(entry.directory).id, entry.cookie}}});
    victims.back().bytes = entry.blocks * kBlockBytes;
    victims.back().unused_ms = ms_since(entry.used, now);
    victims.back().known = true;
  }
  return victims;
}

void Evictor::evicted(const Victim& victim, uint64_t objects, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  counted_.evicted_objects += objects;
  counted_.evicted_bytes += bytes;
  counted_.broken_leases += victim.lease_broken && objects > 0 ? 1 : 0;
  const Why why = victim.lease_broken ? Why::kLeaseBroken : victim.waited_for ? Why::kWaitedFor : Why::kAhead;
  const Age age = EvictionCounts::age_of(victim.unused_ms);
  for (auto* amount : {&counted_.evicted_why[static_cast<size_t>(why)], &counted_.evicted_age[static_cast<size_t>(age)]}) {
    amount->objects += objects;
    amount->bytes += bytes;
  }
  if (going_.erase(victim.unit) == 0) return;
  // A unit that came back meanwhile is a new one.
  if (table_.first_of(victim.unit) != kNoSlot) return;
  policy_->evicted(victim.unit);
  gone_.put({victim.unit});
  gone_.shrink(std::clamp(policy_->units(), kLeastRemembered, kMostRemembered), kForgottenAtOnce, [](const Gone&) {});
}

void Evictor::refused(const Victim& victim, Refused how) {
  constexpr size_t kMany = 1024;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (going_.erase(victim.unit) == 0) return;
  unit_left(victim.unit);
  if (how == Refused::kNotNeeded) return;
  ++counted_.refused;
  if (how == Refused::kForLong) return put_aside(victim.unit, now);
  if (refused_.size() >= kMany && refused_.size() % kMany == 0) std::erase_if(refused_, [&](const auto& each) { return each.second <= now; });
  refused_[victim.unit] = now + kRefusedMs;
}

bool Evictor::wanted_again(const Victim& victim, Leases leases) const {
  const bool breaks = victim.lease_broken || leases == Leases::kBreak;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  return table_.any_of(victim.unit, [&](const Entry& entry) {
    return breaks ? ms_since(entry.used, now) < victim.unused_ms : is_leased(entry, now, leases);
  });
}

// Hides the unit from the policy for a while: a held unit would also hold everything before it in its chain.
void Evictor::put_aside(UnitKey unit, int64_t now) {
  policy_->unlink(unit);
  for (uint32_t slot = table_.first_of(unit); slot != kNoSlot; slot = table_.at(slot).next) {
    table_.at(slot).set(kAside, true);
    aside_.push_back({table_.at(slot).id, tick(now)});
  }
}

void Evictor::forgive() {
  std::lock_guard lock(mutex_);
  refused_.clear();
}

}  // namespace kvcachefs
