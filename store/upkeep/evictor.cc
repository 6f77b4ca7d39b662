#include "store/upkeep/evictor.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/chain/sidecar.h"
#include "store/index/index.h"
#include "store/tree/temporary_names.h"

namespace kvcachefs {

using evict::kNoSlot;
using evict::TimeMs;
using evict::UnitKey;
using evict::UnitName;

namespace {
constexpr int64_t kYoungMs = 10'000;        // an object created and not renamed within this time keeps its name
constexpr int64_t kRefusedLongMs = 60'000;  // not a chunk
constexpr uint32_t kSmallerInARow = 64;     // after this many smaller ones in a row, their size is the usual one

evict::StreamKey stream_of(uint32_t thread_id, const UnitName& name) {
  return {evict::mix_key(name.stem.value + thread_id)};
}
}  // namespace

Evictor::Evictor(Clock& clock) : clock_(clock) {}

void Evictor::configure(const Settings& settings) {
  std::lock_guard lock(mutex_);
  const bool anew = settings.on != settings_.on || (settings.on && settings.policy != settings_.policy);
  const bool more_pins = settings.most_pinned_bytes > settings_.most_pinned_bytes;
  settings_ = settings;
  hopeless_until_ms_.store(INT64_MIN, std::memory_order_relaxed);
  if (anew) restart();
  else if (more_pins && pins_ > 0) settle_all_pins();
  on_.store(settings.on, std::memory_order_relaxed);
  leases_.store(settings.on && settings.lease_ms > 0, std::memory_order_relaxed);
}

// Keeps the counters that only grow.
void Evictor::restart() {
  pins_while_off_ = {};
  for (uint32_t slot = 0; slot < table_.slots() && !settings_.on; ++slot)
    if (const Entry& entry = table_.at(slot); entry.id.valid() && entry.is(kOwnPin)) pins_while_off_.add(entry.id, entry.blocks * kBlockBytes);
  pinned_while_off_.store(!pins_while_off_.files.empty(), std::memory_order_relaxed);
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
  searching_ = false;
  lost_ = 0;
  if (!settings_.on) return;
  auto made = evict::make_policy(settings_.policy);
  if (!made) made = evict::make_policy("prefix");  // not reached: the name was checked when the option was set
  policy_ = std::move(*made);
  origin_ms_ = now_ms();
  table_.directory(kRootId);
  state_ = State::kFilling;
}

// --- accesses ---

void Evictor::note_use(Entry& entry, int64_t now, bool looked) {
  const bool lasts = entry.is(kLooked) && ms_since(entry.used, now) < lease_ms();  // a write does not end the lease
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
  const bool pinned = entry.is(kPinned), grows = blocks > entry.blocks;
  if (pinned) count_pin(entry, false);
  entry.blocks = blocks;
  // One that grows beyond the limit loses its own pin until the next mount: else one that was pinned while it was empty could take all of the capacity.
  if (pinned && grows && entry.is(kOwnPin) && counted_.pinned_bytes + blocks * kBlockBytes > settings_.most_pinned_bytes) {
    entry.set(kOwnPin, false);
    --pins_;
    log::warn("object {} is not pinned any more: it grew, and more than half of the capacity would be pinned", entry.id.value);
  }
  if (pinned) settle_pin(entry);
}

// Returns the object's entry, which has this name from now on.
uint32_t Evictor::enter(uint32_t directory, std::string_view name, const UnitName& of, ObjectId id, uint64_t size_bytes) {
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
  const bool stood_alone = entry.unit == evict::UnitTable::own_unit(id) && of.unit != entry.unit;  // until now it could have been renamed
  if (entry.directory == directory && entry.cookie == cookie && !stood_alone) return slot;
  const UnitKey before = entry.unit;
  table_.move(slot, directory, cookie, of);
  const bool never_known = entry.is(kYoung) && before == evict::UnitTable::own_unit(id);
  if (before != entry.unit && !never_known) unit_left(before);
  if (pins_ > 0) settle_pin(table_.at(slot));
  return slot;
}

// Call after an object left the unit.
void Evictor::unit_left(UnitKey unit) {
  if (table_.first_of(unit) != kNoSlot || going_.contains(unit)) return;
  policy_->unlink(unit);
}

void Evictor::directory_named(ObjectId parent, std::string_view name, ObjectId id) {
  if (!on()) return;
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  const uint32_t slot = table_.directory(id);
  const bool pinned = pins_ > 0 && table_.below_pinned(slot);
  if (table_.name_directory(parent, name, id) && pins_ > 0 && table_.below_pinned(slot) != pinned) settle_all_pins();
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
  const uint32_t slot = enter(directory, name, of, id, size_bytes);
  Entry& entry = table_.at(slot);
  note_look(entry, thread_id, now);
  note_use(entry, now, true);
  if (state_ != State::kReady || entry.is(kYoung | kAside)) return;
  if (!policy_->read(entry.unit, {now})) publish(slot, follows, is_full(entry, name), now);
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
  const bool again = looked || ms_since(entry.used, now) >= kYoungMs;  // otherwise the write belongs to the body that was just published
  note_use(entry, now, looked);
  if (Look& look = looks_[evict::mix_key(id.value) % kLooks]; look.id == id) look = {};  // more than a look: an open or a write
  if (again && state_ == State::kReady && !entry.is(kYoung | kAside)) policy_->read(entry.unit, {now});
}

void Evictor::sized(ObjectId id, uint64_t size_bytes) {
  if (!on()) return;
  std::lock_guard lock(mutex_);
  if (const uint32_t slot = table_.find(id); slot != kNoSlot) set_size(table_.at(slot), size_bytes);
}

// Most files are renamed and published within a moment; one that is not counts as published later.
void Evictor::created(ObjectId parent, std::string_view name, ObjectId id) {
  if (!on()) return;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  const uint32_t directory = table_.directory(parent);
  // A temporary name often has a stem of its own, and the file gets its unit with the name that it is renamed to. If it keeps this one it gets the unit of the
  // name when it is probed, or after a while.
  const UnitName of = table_.name_of(directory, name);
  const bool temporary = TemporaryNames::may_be_renamed(name);
  Entry& entry = table_.at(enter(directory, name, temporary ? UnitName{evict::UnitTable::own_unit(id), evict::kRootStem} : of, id, 0));
  note_use(entry, now, false);
  entry.set(kYoung, true);
  young_.push_back({id, tick(now), temporary ? of : UnitName{}});
  let_grow_up(false, now);
}

void Evictor::published(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) {
  if (!on()) return;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return;
  const uint32_t directory = table_.directory(parent);
  const UnitName of = table_.name_of(directory, name);
  const uint32_t slot = enter(directory, name, of, id, size_bytes);
  Entry& entry = table_.at(slot);
  note_use(entry, now, false);
  inherit_lease(entry, now);
  UnitKey follows;
  if (state_ == State::kReady) follows = links_.see({of.unit, stream_of(thread_id, of), true, false}, {now}, *policy_);
  if (is_stranded(entry, name)) {
    entry.set(kStranded, true);
    stranded_.push_back({id, entry.cookie, name_cookie(body_of_sidecar(name))});
  }
  publish(slot, follows, is_full(entry, name), now);
}

// A probed name keeps its lease whatever object has it: another client may store the same chunk again meanwhile.
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

// True if its body, or that of another sidecar of the unit, was there a moment ago and is gone.
bool Evictor::is_stranded(const Entry& entry, std::string_view name) const {
  const std::string_view body = body_of_sidecar(name);
  if (body.empty() || has_body(entry, name_cookie(body))) return false;
  return gone_.contains(entry.unit) || table_.any_of(entry.unit, [](const Entry& other) { return other.is(kStranded); });
}

bool Evictor::has_body(const Entry& sidecar, uint64_t body_cookie) const {
  return table_.any_of(sidecar.unit, [&](const Entry& other) { return other.cookie == body_cookie && other.directory == sidecar.directory; });
}

// From now on the unit is present, if it was not.
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

// A body smaller than usual for its kind is the end of a request. A sidecar is never one.
bool Evictor::is_full(const Entry& entry, std::string_view name) {
  constexpr size_t kMostStems = 4096;
  if (entry.blocks == 0 || !body_of_sidecar(name).empty()) return true;
  if (usual_.size() >= kMostStems && !usual_.contains(entry.stem)) return true;
  Usual& usual = usual_[entry.stem];
  if (entry.blocks >= usual.blocks || ++usual.smaller > kSmallerInARow) usual = {entry.blocks, 0};
  return entry.blocks >= usual.blocks;
}

// Makes objects known to the policy that were created and still have that name. `all`: also recent ones; a few at a time.
bool Evictor::let_grow_up(bool all, int64_t now) {
  constexpr int kAtOnce = 8;
  bool any = false;
  for (int n = 0; n < kAtOnce && !aside_.empty() && ms_since(aside_.front().since, now) >= kRefusedLongMs; ++n) {
    const uint32_t slot = table_.find(aside_.front().id);
    aside_.pop_front();
    if (slot != kNoSlot && table_.at(slot).is(kAside)) publish(slot, {}, true, now);
  }
  for (int n = 0; n < kAtOnce && !young_.empty() && (all || ms_since(young_.front().since, now) >= kYoungMs); ++n) {
    const Young young = young_.front();
    const uint32_t slot = table_.find(young.id);
    young_.pop_front();
    any = true;
    if (slot == kNoSlot || !table_.at(slot).is(kYoung)) continue;
    const Entry& entry = table_.at(slot);
    if (young.of.unit.valid() && entry.unit == evict::UnitTable::own_unit(young.id)) table_.move(slot, entry.directory, entry.cookie, young.of);
    publish(slot, {}, true, now);
  }
  return any;
}

void Evictor::deleted(ObjectId id) {
  if (!on() && !pinned_while_off_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  if (state_ == State::kOff) return pins_while_off_.remove(id);
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

void Evictor::nameless(ObjectId id, bool lives) {
  constexpr uint64_t kPart = 64;
  deleted(id);
  if (!lives) return;
  const bool many = std::invoke([&] {
    std::lock_guard lock(mutex_);
    return ++lost_ > kPart + table_.objects() / kPart;
  });
  if (many) search_for_lost();
}

}  // namespace kvcachefs
