#include "store/upkeep/eviction.h"

#include <algorithm>
#include <utility>

#include "store/base/units.h"
#include "store/chain/sidecar.h"

namespace kvcachefs {

namespace {
constexpr size_t kUnderLock = 16;        // objects removed under one lock, because clients wait for the names
constexpr size_t kUnitsAtOnce = 64;      // units chosen at a time
constexpr size_t kLeasedAtOnce = 8;      // units at a time that a client may be about to open: they could be probed meanwhile
constexpr size_t kMostRefused = 4096;    // in one step
constexpr int64_t kTidyNs = 5'000'000'000;      // after this long without an eviction, short ranges are given back as well
constexpr uint64_t kLongRangeBytes = 2 * kMiB;  // ranges so long that the cost of a call for each does not matter
}  // namespace

// --- when ---

// The bytes this node can use. Space that others have filled in the file system is not counted: they could fill everything evicted for it.
uint64_t Eviction::usable_bytes() const {
  return std::min(parts_.space.own_limit_bytes(), parts_.space.physical_bytes() + parts_.space.own_free_bytes());
}

// With statfs=headroom, space that eviction can give back counts as free, as long as df still shows 70 % as used.
uint64_t Eviction::shown_free_bytes() const {
  constexpr uint64_t kShownPercent = 30;
  const uint64_t free = parts_.space.free_bytes();
  if (!parts_.options.shows_headroom() || !parts_.evictor.may_evict()) return free;
  const uint64_t headroom = parts_.space.limit_bytes() / 100 * kShownPercent;
  if (free >= headroom) return free;
  const uint64_t live = parts_.space.live_bytes(), dead = parts_.space.dead_bytes(), pinned = parts_.evictor.pinned().bytes;
  const uint64_t bodies = live + parts_.space.reserved_bytes() + dead;
  // Below a limit that is lower than what is there eviction first brings that down to the limit.
  const uint64_t physical = parts_.space.physical_bytes(), stays = physical - std::min(physical, live + dead) + pinned, limit = parts_.space.limit_bytes();
  const uint64_t most = limit - std::min(limit, stays);
  return std::max(free, std::min({headroom, most, free + (bodies - std::min(bodies, pinned))}));
}

Eviction::WaterMarks Eviction::water_marks() {
  constexpr uint64_t kHighPart = 20, kLowPart = 12;  // 95 % and 92 % used
  constexpr int64_t kLeastNs = 50'000'000;
  const int64_t now = parts_.clock.monotonic_ns();
  const uint64_t written = parts_.counters.write_received_bytes.load(std::memory_order_relaxed);
  if (const int64_t since_ns = now - rate_.at_ns; since_ns >= kLeastNs) {
    const double rate = static_cast<double>(written - rate_.written_bytes) / static_cast<double>(since_ns);
    rate_.bytes_per_ns = rate_.at_ns == 0 ? 0 : (rate_.bytes_per_ns + rate) / 2;
    rate_.at_ns = now;
    rate_.written_bytes = written;
  }
  const uint64_t limit = usable_bytes();
  // Peers follow within a second, and nothing comes back before that.
  const int64_t until_back_ns = rate_.round_ns + (parts_.has_peers() ? 1'000'000'000 : 0);
  const auto ahead = static_cast<uint64_t>(rate_.bytes_per_ns * static_cast<double>(until_back_ns));
  return {std::max(limit / kHighPart, std::min(ahead, limit / 8)), std::max(limit / kLowPart, std::min(2 * ahead, limit / 4))};
}

// The bytes that may stay dead in ranges too short to be worth a call each, until their neighbours die as well.
uint64_t Eviction::most_left_bytes() const {
  constexpr uint64_t kLeftPart = 24;
  return leaves_short_ranges_ && !is_shared() ? usable_bytes() / kLeftPart : 0;
}

// The bytes to punch until so much can be reserved at once. (free_bytes() would also count space that only comes back later.)
uint64_t Eviction::bytes_to_punch(uint64_t room_wanted_bytes) const {
  const uint64_t room = parts_.space.room_bytes();
  return room_wanted_bytes - std::min(room, room_wanted_bytes);
}

// Dead space counts as free, because it comes back; except space that clients of this node or another still read, and space in packs that
// are not worth emptying yet.
uint64_t Eviction::free_soon_bytes() const {
  const uint64_t free = parts_.space.own_free_bytes();
  return free - std::min(free, read_bytes_ + unpunched_bytes_);
}

void Eviction::note_unpunched(uint64_t bytes) {
  unpunched_bytes_ = bytes;
  parts_.space.set_dead_that_stays(read_bytes_ + unpunched_bytes_);
}

void Eviction::note_reclaimed(const Reclaimer::Outcome& outcome, uint64_t read_by_peers_bytes) {
  read_bytes_ = outcome.needed_bytes + read_by_peers_bytes;
  parts_.space.set_dead_that_stays(read_bytes_ + unpunched_bytes_);
  left_bytes_ = outcome.left_bytes;
  leaves_short_ranges_ = outcome.punched > 0 && outcome.punched_bytes / outcome.punched < kLongRangeBytes;
}

bool Eviction::is_quiet() const { return parts_.clock.monotonic_ns() - last_ns_ > kTidyNs; }

void Eviction::stop() {
  stopping_ = true;
  walk_.stop();
}

void Eviction::note_round(int64_t begun_ns) {
  rate_.round_ns = (3 * rate_.round_ns + (parts_.clock.monotonic_ns() - begun_ns)) / 4;
}

bool Eviction::evict_ahead() {
  if (!parts_.evictor.on() || parts_.refusals.is_failing()) {
    unmet_since_ns_.reset();
    return false;
  }
  evict_stranded();
  const bool shared = is_shared();
  const WaterMarks marks = water_marks();
  const uint64_t free = free_soon_bytes(), left = most_left_bytes(), least = marks.high + left;
  uint64_t lacking = marks.low + left - std::min(free, marks.low + left);
  if (shared) lacking = share_to_evict(marks);
  if (shared ? lacking == 0 : free >= least) {
    parts_.space.tell_below(shared ? 0 : least);
    // A share is set once a second: in between there may be steps without one, which do not end the wait.
    if (!shared || parts_.shared->plan().evict_bytes == 0) unmet_since_ns_.reset();
    return false;
  }
  walk_.go_on(/*to_the_end=*/true);
  uint64_t evicted = evict(lacking, Evictor::Leases::kKeep, /*waited_for=*/false);
  for (const Evictor::Leases leases : {Evictor::Leases::kListed, Evictor::Leases::kSettled})
    if (evicted < lacking) evicted += evict(lacking - evicted, leases, false);
  if (shared && evicted == 0) evicted = evict_for_others(lacking);
  else unmet_since_ns_.reset();
  if (evicted == 0) return false;  // the next step tries again, within a second
  parts_.journal_names();
  parts_.space.tell_below(!shared && parts_.space.own_free_bytes() >= least ? least : 0);
  return true;
}

// Everything here is leased, but other nodes wait for room: shorten leases as for calls of this node, after a pause, because most end soon.
uint64_t Eviction::evict_for_others(uint64_t bytes) {
  constexpr int64_t kPatienceNs = 3'000'000'000;
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (!unmet_since_ns_) unmet_since_ns_ = now_ns;
  if (now_ns - *unmet_since_ns_ < kPatienceNs) return 0;
  uint64_t evicted = 0;
  for (const Evictor::Leases leases : {Evictor::Leases::kHalf, Evictor::Leases::kQuarter, Evictor::Leases::kEighth, Evictor::Leases::kBreak})
    if (evicted == 0) evicted = evict(bytes, leases, /*waited_for=*/true);
  return evicted;
}

// With several nodes, each evicts the chunks that are the oldest of all, whatever its own claim has left; and as many bytes as the file system
// lacks, as a single node does.
uint64_t Eviction::share_to_evict(const WaterMarks& marks) {
  const uint64_t backing = parts_.space.backing_free_soon_bytes();
  const uint64_t lacking = backing < marks.high ? marks.low - backing : 0;
  backing_is_short_ = lacking > 0;
  return std::max(parts_.shared->take_share(), lacking);
}

uint64_t Eviction::room_wanted(uint64_t pressure) {
  const uint64_t limit = usable_bytes();
  return std::min(limit, water_marks().low + pressure * (limit / 16));
}

bool Eviction::evict_for_room(uint64_t pressure) {
  if (!parts_.evictor.on() || parts_.read_only) return false;
  if (parts_.refusals.is_failing()) return evict_from_one_that_refuses();
  return evict_until_free(room_wanted(pressure) + most_left_bytes()).enough;
}

bool Eviction::evict_from_one_that_refuses() {
  constexpr uint64_t kPart = 64;
  const std::optional<Error> why = parts_.refusals.last();
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const uint64_t durable_bytes = parts_.counters.durable_bytes;
  if (!why || why->code != Code::kNoSpace || !refused_.may_try(now_ns, durable_bytes)) return false;
  const Evicted went = evict_until_free(usable_bytes() / kPart);  // of what is there: nothing counts as free now
  if (went.bytes > 0) refused_.tried(now_ns, durable_bytes, went.bytes);
  return went.enough;
}

bool Eviction::may_make_room() const {
  if (!parts_.evictor.may_evict()) return false;
  return !parts_.refusals.is_failing() || refused_.may_try(parts_.clock.monotonic_ns(), parts_.counters.durable_bytes) || parts_.awaits_sync();
}

Eviction::Evicted Eviction::evict_until_free(uint64_t wanted_bytes) {
  walk_.go_on(/*to_the_end=*/true);
  const auto lacks = [&] {
    const uint64_t free = free_soon_bytes();
    return wanted_bytes - std::min(free, wanted_bytes);
  };
  const uint64_t lacking = lacks();
  if (lacking == 0) return {0, true};
  using enum Evictor::Leases;
  uint64_t evicted = 0;
  for (const Evictor::Leases leases : {kKeep, kListed, kSettled, kHalf, kQuarter, kPaired})
    if (evicted < lacking) evicted += evict(lacks(), leases, true);
  if (evicted >= lacking / 2) return {evicted, true};
  parts_.drain_for_room();  // then objects that were just written may go as well
  if (lacks() == 0) return {evicted, true};
  for (const Evictor::Leases leases : {kEighth, kBreak}) {
    if (evicted >= lacking / 2) break;
    parts_.evictor.forgive();  // units refused because something in them was open
    evicted += evict(lacks(), leases, true);
  }
  if (evicted == 0 && parts_.evictor.search_for_lost()) return evict_until_free(wanted_bytes);
  if (evicted == 0 && parts_.evictor.filling() == 0) parts_.evictor.note_hopeless();  // otherwise the policy was changed meanwhile
  return {evicted, evicted > 0};
}

// --- what and how ---

// Evicts `bytes` if there are that many to evict. `waited_for`: a call waits for them. Call with no lock held.
uint64_t Eviction::evict(uint64_t bytes, Evictor::Leases leases, bool waited_for) {
  std::vector<GoneName> gone;
  uint64_t freed = 0;
  size_t refused = 0;
  while (freed < bytes && refused < kMostRefused && !stopping_) {
    auto victims = parts_.evictor.choose(bytes - freed, leases >= Evictor::Leases::kHalf ? kLeasedAtOnce : kUnitsAtOnce, leases);
    if (victims.empty()) break;
    for (Evictor::Victim& victim : victims) {
      if (freed >= bytes) {  // some victims were larger than known
        parts_.evictor.refused(victim, Evictor::Refused::kNotNeeded);
        continue;
      }
      victim.waited_for = waited_for;
      const uint64_t went = evict_unit(victim, leases, gone);
      freed += went;
      refused += went == 0 ? 1 : 0;
    }
  }
  tell(std::move(gone));
  return freed;
}

uint64_t Eviction::give_up(ObjectId id, double most_worth) {
  const auto victim = stopping_ ? std::nullopt : parts_.evictor.choose_cheap(id, most_worth);
  if (!victim) return 0;
  std::vector<GoneName> gone;
  const uint64_t bytes = evict_unit(*victim, Evictor::Leases::kKeep, gone);
  tell(std::move(gone));
  return bytes;
}

void Eviction::evict_stranded() {
  std::vector<GoneName> gone;
  for (const Evictor::Victim& victim : parts_.evictor.choose_stranded(kUnitsAtOnce)) evict_unit(victim, Evictor::Leases::kBreak, gone);
  tell(std::move(gone));
}

void Eviction::tell(std::vector<GoneName> gone) {
  if (gone.empty()) return;
  last_ns_ = parts_.clock.monotonic_ns();
  parts_.gone.tell(std::move(gone));
}

// Evicts all objects of the unit, or none; but if a client opens one when others are already gone, the rest goes all the same, because a
// unit is only of use as a whole.
uint64_t Eviction::evict_unit(const Evictor::Victim& victim, Evictor::Leases leases, std::vector<GoneName>& gone) {
  struct Going {
    Evictor::Member member;
    std::string name;
    ObjectPtr object;
  };
  std::vector<Going> going;
  Tree::Write tree = parts_.tree.write();
  size_t steps = 0;
  const auto breathe = [&] {
    if (++steps % kUnderLock == 0) tree.breathe();
  };
  const auto let_be = [&](Evictor::Refused how) {
    for (const Going& each : going) tree.forget_if_idle(each.object);
    parts_.evictor.refused(victim, how);
    return uint64_t{0};
  };
  for (const Evictor::Member& member : victim.members) {
    auto name = tree.names().own_name(member.directory, member.cookie, member.id);
    auto object = tree.get(member.id);
    if (!object || !name) {
      parts_.evictor.nameless(member.id, /*lives=*/object && (*object)->nlink > 0);
      if (object) tree.forget_if_idle(*object);
      continue;
    }
    going.push_back({member, std::move(*name), *object});
    breathe();
    const auto kept = guard_.keeps(tree, *object, member.directory, going.back().name, leases);
    if (!kept) continue;
    if (leases != Evictor::Leases::kBreak) return let_be(kept->how);
    // Nothing else is left to evict: the other members go all the same; they are of no use without this one.
    tree.forget_if_idle(*object);
    going.pop_back();
  }
  if (parts_.evictor.wanted_again(victim, leases)) return let_be(Evictor::Refused::kForNow);
  // Sidecars go first, because a client that finds a sidecar believes the body is there.
  std::stable_partition(going.begin(), going.end(), [](const Going& each) { return !body_of_sidecar(each.name).empty(); });
  uint64_t objects = 0, bytes = 0;
  for (Going& each : going) {
    const auto found = tree.names().own_child(each.member.directory, each.name);
    const bool same = found && *found == each.member.id && tree.live(each.member.id) == each.object;
    if (!same || guard_.keeps(tree, each.object, each.member.directory, each.name, leases)) {
      tree.forget_if_idle(each.object);
      continue;
    }
    const uint64_t went = tree.evict(each.object, each.member.directory, each.name);
    if (went == 0) {
      tree.forget_if_idle(each.object);
      continue;
    }
    tree.touch_directory(each.member.directory);
    ++objects;
    bytes += went;
    gone.push_back({each.member.directory, std::move(each.name), each.member.id, victim.known});
    each.object.reset();
    breathe();
  }
  tree.unlock();
  if (objects == 0) parts_.evictor.refused(victim, Evictor::Refused::kForNow);
  else parts_.evictor.evicted(victim, objects, bytes);
  return bytes;
}

}  // namespace kvcachefs
