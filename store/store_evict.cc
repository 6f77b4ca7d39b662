// The mount as a cache: what goes when room is needed (chosen by Evictor, looked at once more here), when, and how: as by an
// unlink, so that its space comes back by invariant 6. All of it runs on the keeper's thread.
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/chain/sidecar.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {
constexpr std::string_view kPinMark = "kvcachefs.pin";  // not in a namespace of xattrs that clients can name
constexpr size_t kUnderLock = 16;        // objects removed at a time while clients wait for the names
constexpr size_t kUnitsAtOnce = 64;      // chosen at a time
constexpr size_t kLeasedAtOnce = 8;      // the same of what a client may be about to open: it could be probed meanwhile
constexpr size_t kMostRefused = 4096;    // in one step
constexpr int64_t kFillNs = 20'000'000;  // at a time, beside what else the keeper does
constexpr int64_t kLeftBehindNs = 600'000'000'000;  // a temporary name that nobody renamed goes as what else is old,
constexpr int64_t kAboutToRenameNs = 10'000'000'000;  // and where nothing else is left to go

bool has_pin(const Attributes& attributes) {
  return std::any_of(attributes.xattrs.begin(), attributes.xattrs.end(), [](const Xattr& xattr) { return xattr.name == kPinMark; });
}
}  // namespace

bool StoreImpl::is_pin_mark(std::string_view name) { return name == kPinMark; }

// --- what the evictor is to know of a volume that is there already ---

void StoreImpl::tell_of_names(EvictWalk& walk) {
  constexpr size_t kPageNames = 128;
  const ObjectId directory = walk.directories.front();
  std::vector<NameEntry> page;
  {
    const Tree::Read tree = tree_->read();
    if (walk.after == 0) {
      const auto attributes = attributes_of(tree, directory);
      evictor_->found_directory({}, {}, directory, attributes && has_pin(*attributes));
    }
    if (auto listed = tree.names().list(directory, walk.after, kPageNames)) page = std::move(*listed);
  }
  if (page.empty()) {
    walk.directories.pop_front();
    walk.after = 0;
    walk.over = walk.directories.empty();
    return;
  }
  walk.after = page.back().cookie;
  for (const NameEntry& entry : page) {
    if (entry.child.is_foreign()) continue;  // its node evicts it
    if (entry.type_bits == S_IFDIR) {
      evictor_->found_directory(directory, entry.name, entry.child, false);
      walk.directories.push_back(entry.child);
      continue;
    }
    if (entry.type_bits != S_IFREG) continue;
    Tree::Read tree = tree_->read();
    const auto attributes = attributes_of(tree, entry.child);
    const auto stat = tree.stat(entry.child);
    tree.unlock();
    if (!attributes || !stat) continue;
    Evictor::Found found{.parent = directory, .id = entry.child, .name = entry.name, .follows = {}};
    found.size_bytes = stat->size_bytes;
    found.used_ns = std::max(stat->atime_ns, stat->mtime_ns);
    found.pinned = has_pin(*attributes);
    if (auto row = index_->find_successors(entry.child); row && *row) found.follows = (*row)->predecessor;
    evictor_->found(found);
  }
}

std::optional<Attributes> StoreImpl::attributes_of(const Tree::View& tree, ObjectId id) const {
  if (ObjectPtr object = tree.live(id)) {
    const auto lock = object->lock();
    return object->attributes;
  }
  auto record = tree.record_summary(id);
  if (!record || !*record) return std::nullopt;
  return std::move((*record)->attributes);
}

// A piece of it, or all that is left where a call waits for what comes of it. True if there was something to do.
bool StoreImpl::fill_evictor(bool to_the_end) {
  if (!evictor_->on()) return false;
  EvictWalk& walk = evict_walk_;
  const uint64_t number = evictor_->filling();
  if (number == 0 && walk.number == 0) return false;
  if (number != 0 && walk.number != number) {
    walk = {};
    walk.number = number;
    walk.directories.push_back(kRootId);
  }
  const int64_t until_ns = clock_.monotonic_ns() + kFillNs;
  while (walk.number != 0 && !stopping_ && (to_the_end || clock_.monotonic_ns() < until_ns)) {
    if (!walk.over) tell_of_names(walk);
    else if (evictor_->build(walk.number)) walk = {};
  }
  if (walk.number != 0) keeper_wakeup_.wake();
  return true;
}

// --- when ---

// `high`: less may be left free before something goes; `low`: then until so much is. As much as writers take while it goes.
// What others have of the file system is not counted: they could fill it with all that goes.
uint64_t StoreImpl::usable_bytes() const { return std::min(space_.limit_bytes(), space_.physical_bytes() + space_.free_bytes()); }

// What df shows. With statfs=headroom what eviction can give back counts as free, as long as 70 % are shown as used.
uint64_t StoreImpl::shown_free_bytes() const {
  constexpr uint64_t kShownPercent = 30;
  const uint64_t free = space_.free_bytes();
  if (!options_.shows_headroom() || !may_evict()) return free;
  const uint64_t headroom = space_.limit_bytes() / 100 * kShownPercent;
  if (free >= headroom) return free;
  const uint64_t bodies = space_.live_bytes() + space_.reserved_bytes() + space_.dead_bytes(), pinned = evictor_->pinned_bytes();
  return std::min(headroom, free + (bodies - std::min(bodies, pinned)));
}

StoreImpl::WaterMarks StoreImpl::water_marks() {
  constexpr uint64_t kHighPart = 20, kLowPart = 12;  // 95 % and 92 % used
  constexpr int64_t kLeastNs = 50'000'000;
  const int64_t now = clock_.monotonic_ns();
  const uint64_t written = counters_.write_received_bytes.load(std::memory_order_relaxed);
  if (const int64_t since_ns = now - evict_rate_.at_ns; since_ns >= kLeastNs) {
    const double rate = static_cast<double>(written - evict_rate_.written_bytes) / static_cast<double>(since_ns);
    evict_rate_.bytes_per_ns = evict_rate_.at_ns == 0 ? 0 : (evict_rate_.bytes_per_ns + rate) / 2;
    evict_rate_.at_ns = now;
    evict_rate_.written_bytes = written;
  }
  const uint64_t limit = usable_bytes();
  const auto ahead = static_cast<uint64_t>(evict_rate_.bytes_per_ns * static_cast<double>(evict_rate_.round_ns));
  return {std::max(limit / kHighPart, std::min(ahead, limit / 8)), std::max(limit / kLowPart, std::min(2 * ahead, limit / 4))};
}

// So much may stay dead, in ranges that are too short to be worth a call each until their neighbours died as well.
uint64_t StoreImpl::most_left_bytes() const {
  constexpr uint64_t kLeftPart = 24;
  return eviction_.leaves_short_ranges ? usable_bytes() / kLeftPart : 0;
}

// Until so much can be reserved at once. (What is free counts what comes back, too.)
uint64_t StoreImpl::bytes_to_punch(uint64_t room_wanted) const {
  const uint64_t room = space_.room_bytes();
  return room_wanted - std::min(room, room_wanted);
}

void StoreImpl::note_eviction_round(int64_t begun_ns) {
  evict_rate_.round_ns = (3 * evict_rate_.round_ns + (clock_.monotonic_ns() - begun_ns)) / 4;
}

// A step of the keeper, before anybody waits. True: what went is to be given back.
bool StoreImpl::evict_ahead() {
  if (!evictor_->on() || refusals_.is_failing()) return false;
  evict_stranded();
  const WaterMarks marks = water_marks();
  const uint64_t free = space_.free_bytes(), left = most_left_bytes(), least = marks.high + left;
  if (free >= least) {
    space_.tell_below(least);
    return false;
  }
  fill_evictor(/*to_the_end=*/true);
  const uint64_t lacking = marks.low + left - free;
  uint64_t evicted = evict(lacking, Evictor::Leases::kKeep, /*waited_for=*/false);
  for (const Evictor::Leases leases : {Evictor::Leases::kListed, Evictor::Leases::kSettled})
    if (evicted < lacking) evicted += evict(lacking - evicted, leases, false);
  if (evicted == 0) return false;  // the next step tries again, a second later
  journal_names();
  space_.tell_below(space_.free_bytes() >= least ? least : 0);
  return true;
}

// What a round makes room for, where some call has waited for so many of them and found none.
uint64_t StoreImpl::room_wanted(uint64_t pressure) {
  const uint64_t limit = usable_bytes();
  return std::min(limit, water_marks().low + pressure * (limit / 16));
}

// First thing when calls wait for room. True if enough of it will come back once the names are journaled, and what is dead was
// given back. `pressure`: so many rounds some call has waited in vain.
bool StoreImpl::evict_for_room(uint64_t pressure) {
  if (!evictor_->on() || read_only_) return false;
  fill_evictor(/*to_the_end=*/true);
  // Where the volume takes nothing although it tells of room, it may be of inodes that there are none, or a quota: a little goes each
  // time, which helps there, and does not empty a volume of which something else is wrong.
  const bool refuses = refusals_.is_failing();
  const uint64_t wanted = refuses ? usable_bytes() / 64 : room_wanted(pressure) + most_left_bytes();
  const auto lacks = [&] {
    const uint64_t free = space_.free_bytes();
    return wanted - std::min(free, wanted);
  };
  const uint64_t lacking = lacks();
  if (lacking == 0) return true;
  using enum Evictor::Leases;
  uint64_t evicted = 0;
  for (const Evictor::Leases leases : {kKeep, kListed, kSettled, kHalf, kQuarter, kPaired})
    if (evicted < lacking) evicted += evict(lacks(), leases, true);
  if (evicted >= lacking / 2) return true;
  drain_and_wait(/*for_room=*/true);  // what was just written may go as well
  if (lacks() == 0) return true;
  for (const Evictor::Leases leases : {kEighth, kBreak}) {
    if (evicted >= lacking / 2) break;
    evictor_->forgive();  // units of which something was open
    evicted += evict(lacks(), leases, true);
  }
  if (evicted == 0 && evictor_->filling() == 0) evictor_->note_hopeless();  // else the policy was changed meanwhile
  return evicted > 0;
}

bool StoreImpl::may_evict() const { return evictor_ && evictor_->on() && !evictor_->hopeless(); }

// What waits of names is in the journal when this returns.
void StoreImpl::journal_names() {
  static_cast<void>(committer_->commit_and_wait({}));  // an error is the committer's to tell; they stay pending
}

// --- what and how ---

// Removes so many bytes if they are there to be removed. `waited_for`: a call waits for them. No lock held.
uint64_t StoreImpl::evict(uint64_t bytes, Evictor::Leases leases, bool waited_for) {
  std::vector<GoneName> gone;
  uint64_t freed = 0;
  size_t refused = 0;
  while (freed < bytes && refused < kMostRefused && !stopping_) {
    auto victims = evictor_->choose(bytes - freed, leases >= Evictor::Leases::kHalf ? kLeasedAtOnce : kUnitsAtOnce, leases);
    if (victims.empty()) break;
    for (Evictor::Victim& victim : victims) {
      if (freed >= bytes) {  // some were larger than was known
        evictor_->refused(victim, Evictor::Refused::kNotNeeded);
        continue;
      }
      victim.waited_for = waited_for;
      const uint64_t went = evict_unit(victim, leases, gone);
      freed += went;
      refused += went == 0 ? 1 : 0;
    }
  }
  tell_gone(std::move(gone));
  return freed;
}

void StoreImpl::evict_stranded() {
  std::vector<GoneName> gone;
  for (const Evictor::Victim& victim : evictor_->choose_stranded(kUnitsAtOnce)) evict_unit(victim, Evictor::Leases::kBreak, gone);
  tell_gone(std::move(gone));
}

void StoreImpl::tell_gone(std::vector<GoneName> gone) {
  if (gone.empty()) return;
  eviction_.last_ns = clock_.monotonic_ns();
  dirty_.wake();
  tell_kernel(std::move(gone));
}

// Any thread; no lock held.
void StoreImpl::tell_kernel(std::vector<GoneName> gone) {
  NamesGone told;
  {
    std::lock_guard lock(names_gone_mutex_);
    told = names_gone_;
  }
  if (told) told(std::move(gone));
}

void StoreImpl::set_names_gone(NamesGone told) {
  std::lock_guard lock(names_gone_mutex_);
  names_gone_ = std::move(told);
}

// All objects of the unit, or none; where a client opens one just when others are gone already, the rest goes all the same, for a
// unit is of use only as a whole.
uint64_t StoreImpl::evict_unit(const Evictor::Victim& victim, Evictor::Leases leases, std::vector<GoneName>& gone) {
  struct Going {
    Evictor::Member member;
    std::string name;
    ObjectPtr object;
  };
  std::vector<Going> going;
  Tree::Write tree = tree_->write();
  size_t steps = 0;
  const auto breathe = [&] {
    if (++steps % kUnderLock == 0) tree.breathe();
  };
  const auto let_be = [&](Evictor::Refused how) {
    for (const Going& each : going) tree.forget_if_idle(each.object);
    evictor_->refused(victim, how);
    return uint64_t{0};
  };
  for (const Evictor::Member& member : victim.members) {
    auto name = name_with_cookie(tree, member);
    auto object = name ? tree.get(member.id) : fail(Code::kNotFound, {});
    if (!object) {
      evictor_->nameless(member.id);
      continue;
    }
    going.push_back({member, std::move(*name), *object});
    breathe();
    const auto kept = keeps_from_going(tree, *object, member.directory, going.back().name, leases);
    if (!kept) continue;
    if (leases != Evictor::Leases::kBreak) return let_be(kept->how);
    // Nothing else is left to go: the others of the unit, which are of no use without this, go all the same.
    tree.forget_if_idle(*object);
    going.pop_back();
  }
  if (evictor_->wanted_again(victim, leases)) return let_be(Evictor::Refused::kForNow);
  // A client that finds the sidecar takes the body for there.
  std::stable_partition(going.begin(), going.end(), [](const Going& each) { return !body_of_sidecar(each.name).empty(); });
  uint64_t objects = 0, bytes = 0;
  for (Going& each : going) {
    const auto found = tree.names().own_child(each.member.directory, each.name);
    const bool same = found && *found == each.member.id && tree.live(each.member.id) == each.object;
    if (!same || keeps_from_going(tree, each.object, each.member.directory, each.name, leases)) {
      tree.forget_if_idle(each.object);
      continue;
    }
    const uint64_t went = remove_evicted(tree, each.object, each.member.directory, each.name);
    if (went == 0) continue;
    ++objects;
    bytes += went;
    gone.push_back({each.member.directory, std::move(each.name), each.member.id, victim.known});
    each.object.reset();
    breathe();
  }
  tree.unlock();
  if (objects == 0) evictor_->refused(victim, Evictor::Refused::kForNow);
  else evictor_->evicted(victim, objects, bytes);
  return bytes;
}

// The name that the object had in the directory when it was last heard of.
std::optional<std::string> StoreImpl::name_with_cookie(const Tree::View& tree, const Evictor::Member& member) const {
  auto page = tree.names().list_own(member.directory, member.cookie - 1, 1);
  if (!page) return std::nullopt;
  for (NameEntry& entry : *page)
    if (entry.cookie == member.cookie && entry.child == member.id) return std::move(entry.name);
  return std::nullopt;
}

// Empty: it may be evicted.
std::optional<StoreImpl::Kept> StoreImpl::keeps_from_going(const Tree::Write& tree, const ObjectPtr& object, ObjectId parent,
                                                           std::string_view name, Evictor::Leases leases) const {
  if (tree.has_versions(parent, name)) return Kept{Evictor::Refused::kForNow, "several writers"};
  if (const auto kept = keeps_object(tree, object, leases)) return kept;
  const auto lock = object->lock();
  if (is_about_to_be_renamed(*object, name, leases == Evictor::Leases::kBreak ? kAboutToRenameNs : kLeftBehindNs))
    return Kept{Evictor::Refused::kForNow, "not renamed"};
  if (object->size_bytes <= kBlockBytes && TemporaryNames::is_lock(name)) return Kept{Evictor::Refused::kForLong, "lock file"};
  return std::nullopt;
}

// The same without a look at its name.
std::optional<StoreImpl::Kept> StoreImpl::keeps_object(const Tree::View&, const ObjectPtr& object, Evictor::Leases leases) const {
  using enum Evictor::Refused;
  if (!object->is_regular()) return Kept{kForLong, "not a file"};
  if (object->locked) return Kept{kForLong, "locked"};
  if (object->in_place && object->changed_in_part) return Kept{kForLong, "changed in place"};
  if (object->patched && leases != Evictor::Leases::kBreak) return Kept{kForNow, "changed in part"};
  if (object->nlink > 1) return Kept{kForLong, "several names"};  // all names of an object go, or none
  if (object->nlink == 0) return Kept{kForNow, "no name"};
  if (!object->durable) return Kept{kForNow, "not settled"};
  const auto lock = object->lock();
  if (object->raw || object->base.place.kind == PlaceKind::kRaw) return Kept{kForLong, "raw"};
  if (object->base.quarantined) return Kept{kForLong, "quarantined"};
  if (object->handles > 0) return Kept{kForNow, "open"};
  if (object->content_dirty() || object->sealing || object->lingering || object->kept_for_repeat > 0 || object->awaiting_open ||
      object->replaces || object->spill || object->write_error)
    return Kept{kForNow, "not settled"};
  if (!object->loading.empty() || !object->wanted.empty()) return Kept{kForNow, "being read"};
  if (object->base.place.kind == PlaceKind::kNone || object->size_bytes == 0) return Kept{kForLong, "empty"};  // nothing would come back
  return std::nullopt;
}

// The object is locked. An object that was not in RAM meanwhile is known by its name and its times alone.
bool StoreImpl::is_about_to_be_renamed(const Object& object, std::string_view name, int64_t within_ns) const {
  if (!object.published) {
    const bool says_so = object.temporary || TemporaryNames::may_be_renamed(name);
    if (!says_so && !name.starts_with('.')) return false;  // a hidden one may be, as rsync does it
    return clock_.monotonic_ns() - object.last_write_ns < (says_so ? within_ns : kAboutToRenameNs);
  }
  if (!TemporaryNames::may_be_renamed(name)) return false;
  const int64_t age_ns = clock_.realtime_ns() - object.attributes.ctime_ns;
  return age_ns >= 0 && age_ns < within_ns;
}

// As Tree::Write::unlink(), of an object with one name and no other version. Returns the bytes on the volume.
uint64_t StoreImpl::remove_evicted(Tree::Write& tree, const ObjectPtr& object, ObjectId parent, const std::string& name) {
  auto state = tree.names().edit(parent, name);
  if (!state) return 0;
  uint64_t bytes = 0;
  {
    const auto lock = object->lock();
    const Place& place = object->base.place;
    bytes = std::max<uint64_t>(place.kind == PlaceKind::kInline ? object->size_bytes : align_up(place.length, kBlockBytes), 1);
  }
  if ((*state)->child == object->id) (*state)->child = {};  // else a peer has it as well
  (*state)->erase_durable = (*state)->evicted = true;
  record_space_->accept(kNameRecordBytes + name.size());
  tree.touch_directory(parent);
  tree.change_links(object, -1);
  tree.forget_if_idle(object);
  tree.forget_removed(object->id);  // who asks for it learns that the name is to be looked up again
  kill_point("name-removed");
  return bytes;
}

// --- for people ---

namespace {
std::string duration_text(int64_t ms) {
  constexpr int64_t kSecond = 1'000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (ms < 2 * kMinute) return fmt::format("{} s", ms / kSecond);
  if (ms < 2 * kHour) return fmt::format("{} min", ms / kMinute);
  if (ms < 2 * kDay) return fmt::format("{} h", ms / kHour);
  return fmt::format("{} days", ms / kDay);
}
}  // namespace

// What keeps it from eviction, and how long it was not used.
void StoreImpl::describe_eviction(const Tree::View& tree, const ObjectPtr& object, uint32_t thread_id,
                                  std::vector<std::pair<std::string, std::string>>& facts) const {
  if (!object->is_regular()) return;
  if (!evictor_->on()) return facts.emplace_back("kept_by", "evict=off"), void();
  const auto known = evictor_->known(object->id, thread_id);
  const auto kept = keeps_object(tree, object, Evictor::Leases::kKeep);
  const char* by = "nothing";
  if (known && known->hold == evict::Hold::kPinned) by = "pinned";
  else if (kept) by = kept->why;
  else if (known && known->hold == evict::Hold::kLeased) by = "leased";
  else if (known && known->young) by = "just created";
  else if (!known || known->hold == evict::Hold::kOther) by = "not settled";
  facts.emplace_back("kept_by", by);
  if (!known) return;
  facts.emplace_back("last_used", fmt::format("{} ago; {:.0f} % of all files were used since", duration_text(known->unused_ms),
                                              100 * known->used_since));
}

// --- pins ---

Status StoreImpl::set_pinned(ObjectId id, bool pinned) {
  if (read_only_) return fail(Code::kReadOnly, "the mount is read-only");
  const Status status = change_xattrs(id, [&](const ObjectPtr& object) -> Status {
    if (!object->is_regular() && !object->is_directory())
      return fail(Code::kInvalid, fmt::format("object {} is neither a file nor a directory: it is not evicted", id.value));
    auto& xattrs = object->attributes.xattrs;
    const auto at = std::lower_bound(xattrs.begin(), xattrs.end(), kPinMark, [](const Xattr& x, std::string_view n) { return x.name < n; });
    const bool there = at != xattrs.end() && at->name == kPinMark;
    if (!pinned && !there) return fail(Code::kNoAttribute, fmt::format("object {} is not pinned itself", id.value));
    KVC_TRY(evictor_->pin(id, object->is_directory(), pinned));
    if (!pinned) xattrs.erase(at);
    else if (!there) xattrs.insert(at, Xattr{std::string(kPinMark), {}});
    return {};
  });
  if (!status) log::warn("pin: {}", status.error().message);
  return status;
}

}  // namespace kvcachefs
