#include "store/upkeep/evictor.h"

#include <algorithm>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/chain/sidecar.h"
#include "store/index/index.h"

namespace kvcachefs {

using evict::Hold;
using evict::kNoSlot;
using evict::TimeMs;
using evict::UnitKey;
using evict::UnitName;

namespace {
constexpr int64_t kYoungMs = 10'000;        // what is created and not renamed by then has the name that it keeps
constexpr int64_t kJustWrittenMs = 2'000;
constexpr int64_t kSidecarMs = 250;          // until what belongs to a body that was just renamed is there, too
constexpr int64_t kRefusedMs = 500;         // open, or not whole yet
constexpr int64_t kRefusedLongMs = 60'000;  // no chunk
constexpr int64_t kListedTickMs = 128;
constexpr uint32_t kSmallerInARow = 64;     // after so many smaller ones that is what is usual
constexpr size_t kLeastRemembered = 1'024, kMostRemembered = 1 << 20, kForgottenAtOnce = 16;  // units that were evicted

// It comes round after some hours: what was listed so long ago may look as if it had been listed just now, which does little harm.
uint16_t listed_tick(int64_t ms) { return static_cast<uint16_t>(std::max<int64_t>(ms / kListedTickMs % 0x10000, 1)); }

evict::StreamKey stream_of(uint32_t thread_id, const UnitName& name) {
  return {evict::mix_key(name.stem.value + thread_id)};
}
}  // namespace

Evictor::Evictor(Clock& clock) : clock_(clock) {}

void Evictor::configure(const Settings& settings) {
  std::lock_guard lock(mutex_);
  const bool anew = settings.on != settings_.on || (settings.on && settings.policy != settings_.policy);
  settings_ = settings;
  hopeless_until_ms_.store(INT64_MIN, std::memory_order_relaxed);
  if (anew) restart();
  on_.store(settings.on, std::memory_order_relaxed);
  leases_.store(settings.on && settings.lease_ms > 0, std::memory_order_relaxed);
}

// Of the counters those that only grow stay.
void Evictor::restart() {
  table_.clear();
  links_ = evict::PrefixLinks();
  young_.clear();
  aside_.clear();
  stranded_.clear();
  usual_.clear();
  refused_.clear();
  going_.clear();
  gone_ = {};
  looks_ = {};
  passed_ = {};
  follows_.clear();
  pins_ = 0;
  counted_.pinned_objects = counted_.pinned_bytes = 0;
  policy_.reset();
  state_ = State::kOff;
  ++number_;
  if (!settings_.on) return;
  auto made = evict::make_policy(settings_.policy);
  if (!made) made = evict::make_policy("prefix");  // the name was checked when the option was set
  policy_ = std::move(*made);
  origin_ms_ = now_ms();
  table_.directory(kRootId);
  state_ = State::kFilling;
}

// --- accesses ---

void Evictor::note_use(Entry& entry, int64_t now, bool looked) {
  const bool lasts = entry.is(kLooked) && ms_since(entry.used, now) < lease_ms();  // a write does not end it
  entry.used = tick(now);
  entry.set(kLooked, looked || lasts);
}

void Evictor::note_look(const Entry& entry, uint32_t thread_id, int64_t now) {
  Look& look = looks_[evict::mix_key(entry.id.value) % kLooks];
  if (look.id == entry.id && look.thread_id == thread_id && ms_since(look.at, now) < kLookMs) return;
  look = {entry.id, thread_id, tick(now), entry.used, entry.is(kLooked)};
}

void Evictor::set_size(Entry& entry, uint64_t size_bytes) {
  if (size_bytes == 0) return;
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(div_ceil(size_bytes, kBlockBytes), UINT32_MAX));
  if (blocks == entry.blocks) return;
  const bool pinned = entry.is(kPinned);
  if (pinned) count_pin(entry, false);
  entry.blocks = blocks;
  if (pinned) settle_pin(entry);
}

// The entry of the object, under this name from now on.
uint32_t Evictor::enter(uint32_t directory, std::string_view name, ObjectId id, uint64_t size_bytes) {
  const UnitName of = table_.name_of(directory, name);
  const uint64_t cookie = name_cookie(name);
  uint32_t slot = table_.find(id);
  if (slot == kNoSlot) {
    slot = table_.add(id, directory, cookie, of);
    set_size(table_.at(slot), size_bytes);
    if (pins_ > 0) settle_pin(table_.at(slot));
    return slot;
  }
  Entry& entry = table_.at(slot);
  set_size(entry, size_bytes);
  if (entry.directory == directory && entry.cookie == cookie) return slot;
  const UnitKey before = entry.unit;
  table_.move(slot, directory, cookie, of);
  if (before != entry.unit) unit_left(before);
  if (pins_ > 0) settle_pin(table_.at(slot));
  return slot;
}

// One object less in it.
void Evictor::unit_left(UnitKey unit) {
  if (table_.first_of(unit) != kNoSlot || going_.contains(unit)) return;
  policy_->unlink(unit);
}

void Evictor::directory_named(ObjectId parent, std::string_view name, ObjectId id) {
  if (!on()) return;
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  if (table_.name_directory(parent, name, id) && pins_ > 0) settle_all_pins();
}

void Evictor::probed(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) {
  if (!on()) return;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  const uint32_t directory = table_.directory(parent);
  const UnitName of = table_.name_of(directory, name);
  UnitKey follows;
  if (state_ == State::kReady) follows = links_.see({of.unit, stream_of(thread_id, of), false, false}, {now}, *policy_);
  if (!id.valid() || id.is_foreign()) return;  // the node that stored it evicts it
  const uint32_t slot = enter(directory, name, id, size_bytes);
  Entry& entry = table_.at(slot);
  note_look(entry, thread_id, now);
  note_use(entry, now, true);
  if (state_ != State::kReady || entry.is(kYoung | kAside)) return;
  if (policy_->holds(entry.unit)) return policy_->read(entry.unit, {now});
  publish(slot, follows, is_full(entry, name), now);
}

bool Evictor::will_be_told(ObjectId id, uint32_t thread_id) {
  if (!on()) return false;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  const uint32_t slot = table_.find(id);
  if (slot == kNoSlot) return false;
  Entry& entry = table_.at(slot);
  note_look(entry, thread_id, now);
  note_use(entry, now, true);
  return state_ == State::kReady && policy_->forks_behind(entry.unit);
}

void Evictor::will_be_listed(std::span<const ObjectId> ids) {
  if (!gives_leases()) return;
  const int64_t now = now_ms();
  listed_ms_.store(now, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  for (const ObjectId id : ids)
    if (const uint32_t slot = table_.find(id); slot != kNoSlot) table_.at(slot).listed = listed_tick(now - origin_ms_);
}

void Evictor::used(ObjectId id, uint64_t size_bytes, bool looked) {
  if (!on()) return;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  const uint32_t slot = table_.find(id);
  if (slot == kNoSlot) return;
  Entry& entry = table_.at(slot);
  set_size(entry, size_bytes);
  const bool again = looked || ms_since(entry.used, now) >= kYoungMs;  // else the write belongs to what was just published
  note_use(entry, now, looked);
  if (Look& look = looks_[evict::mix_key(id.value) % kLooks]; look.id == id) look = {};  // that was no mere look
  if (again && state_ == State::kReady && !entry.is(kYoung | kAside)) policy_->read(entry.unit, {now});
}

void Evictor::sized(ObjectId id, uint64_t size_bytes) {
  if (!on()) return;
  std::lock_guard lock(mutex_);
  if (const uint32_t slot = table_.find(id); slot != kNoSlot) set_size(table_.at(slot), size_bytes);
}

// Most are renamed in a moment, and then published; what is not is taken for published later.
void Evictor::created(ObjectId parent, std::string_view name, ObjectId id) {
  if (!on()) return;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  Entry& entry = table_.at(enter(table_.directory(parent), name, id, 0));
  note_use(entry, now, false);
  entry.set(kYoung, true);
  young_.push_back({id, tick(now)});
  let_grow_up(false, now);
}

void Evictor::published(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) {
  if (!on()) return;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  const uint32_t directory = table_.directory(parent);
  const uint32_t slot = enter(directory, name, id, size_bytes);
  Entry& entry = table_.at(slot);
  note_use(entry, now, false);
  inherit_lease(entry, now);
  UnitKey follows;
  if (state_ == State::kReady) {
    const UnitName of = table_.name_of(directory, name);
    follows = links_.see({of.unit, stream_of(thread_id, of), true, false}, {now}, *policy_);
  }
  if (is_stranded(entry, name)) {
    entry.set(kStranded, true);
    stranded_.push_back({id, entry.cookie, name_cookie(body_of_sidecar(name))});
  }
  publish(slot, follows, is_full(entry, name), now);
}

// A name that was probed is promised, whatever object has it: the same chunk may be stored again by another client meanwhile.
void Evictor::inherit_lease(Entry& entry, int64_t now) {
  bool looked = table_.any_of(entry.unit, [&](const Entry& other) {
    return other.cookie == entry.cookie && other.directory == entry.directory && other.is(kLooked) && is_used_lately(other, now, Leases::kKeep);
  });
  Passed& passed = passed_[entry.cookie % kPassed];
  if (passed.cookie == entry.cookie && passed.directory == entry.directory) {
    looked |= ms_since(passed.used, now) < lease_ms();
    passed = {};
  }
  if (looked) entry.set(kLooked, true);
}

// Its body was there a moment ago, or that of another sidecar of the unit, and is not.
bool Evictor::is_stranded(const Entry& entry, std::string_view name) const {
  const std::string_view body = body_of_sidecar(name);
  if (body.empty() || has_body(entry, name_cookie(body))) return false;
  return gone_.contains(entry.unit) || table_.any_of(entry.unit, [](const Entry& other) { return other.is(kStranded); });
}

bool Evictor::has_body(const Entry& sidecar, uint64_t body_cookie) const {
  return table_.any_of(sidecar.unit, [&](const Entry& other) { return other.cookie == body_cookie && other.directory == sidecar.directory; });
}

// The unit is there from now on, if it was not.
void Evictor::publish(uint32_t slot, UnitKey follows, bool full, int64_t now) {
  Entry& entry = table_.at(slot);
  entry.set(kYoung | kAside, false);
  hopeless_until_ms_.store(INT64_MIN, std::memory_order_relaxed);
  if (state_ != State::kReady) return;
  entry.set(kBuilt, true);
  const bool was_there = policy_->holds(entry.unit);
  policy_->publish({entry.unit, follows, table_.stem(entry), full}, {now});
  if (was_there) return;
  refused_.erase(entry.unit);
  counted_.came_back += gone_.take(entry.unit) ? 1 : 0;
}

// A body smaller than those of its kind usually are is the end of a request. A sidecar is none.
bool Evictor::is_full(const Entry& entry, std::string_view name) {
  constexpr size_t kMostStems = 4096;
  if (entry.blocks == 0 || !body_of_sidecar(name).empty()) return true;
  if (usual_.size() >= kMostStems && !usual_.contains(entry.stem)) return true;
  Usual& usual = usual_[entry.stem];
  if (entry.blocks >= usual.blocks || ++usual.smaller > kSmallerInARow) usual = {entry.blocks, 0};
  return entry.blocks >= usual.blocks;
}

// What was created and is still under that name becomes known to the policy. `all`: also what was a moment ago; a few at a time.
bool Evictor::let_grow_up(bool all, int64_t now) {
  constexpr int kAtOnce = 8;
  bool any = false;
  for (int n = 0; n < kAtOnce && !aside_.empty() && ms_since(aside_.front().since, now) >= kRefusedLongMs; ++n) {
    const uint32_t slot = table_.find(aside_.front().id);
    aside_.pop_front();
    if (slot != kNoSlot && table_.at(slot).is(kAside)) publish(slot, {}, true, now);
  }
  for (int n = 0; n < kAtOnce && !young_.empty() && (all || ms_since(young_.front().since, now) >= kYoungMs); ++n) {
    const uint32_t slot = table_.find(young_.front().id);
    young_.pop_front();
    any = true;
    if (slot != kNoSlot && table_.at(slot).is(kYoung)) publish(slot, {}, true, now);
  }
  return any;
}

void Evictor::deleted(ObjectId id) {
  if (!on()) return;
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  const uint32_t slot = table_.find(id);
  if (slot == kNoSlot) {
    const uint32_t directory = table_.find_directory(id);
    if (directory != kNoSlot && std::exchange(table_.directory_at(directory).pinned, false)) --pins_;
    return table_.remove_directory(id);
  }
  Entry& entry = table_.at(slot);
  if (entry.is(kPinned)) count_pin(entry, false);
  if (entry.is(kOwnPin)) --pins_;
  const UnitKey unit = entry.unit;
  if (entry.is(kLooked)) passed_[entry.cookie % kPassed] = {entry.cookie, entry.directory, entry.used};
  table_.remove(slot);
  unit_left(unit);
}

void Evictor::nameless(ObjectId id) { deleted(id); }

// --- choosing ---

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

// It was probed or opened within the lease.
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
      // What was just listed may hold all ends of chains: those leases are rather broken than all chains cut.
      const bool listed = leases == Leases::kKeep && now - listed_ms_.load(std::memory_order_relaxed) < lease_ms();
      if (++busy < kMostBusy && !listed && policy_->part_chains(ask)) continue;  // rather than to break leases
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
    if (entry.cookie != one.cookie || has_body(entry, one.body_cookie)) {  // renamed, or its body came again
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
  // One that came back meanwhile is another.
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

// It is not known to the policy for a while: a unit that is held would hold all that is before it in its chain.
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
