#include "store/peers/claim_peers.h"

#include <algorithm>
#include <utility>

#include "store/journal/file_header.h"
#include "store/peers/slot_reader.h"
#include "store/volume/lock_probe.h"

namespace kvcachefs {

namespace {

constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kWatchedNs = 10'000 * kMsNs;    // after so long without a sign of life nothing is expected of a node
constexpr int64_t kOwnViewNs = 5'000 * kMsNs;     // what was read here last is newer than what take_in() is given for so long
constexpr int64_t kForgottenNs = 10'000 * kMsNs;  // the list of nodes that take_in() is given may be older than the last one here
constexpr int64_t kAskedNs = 1'000 * kMsNs, kAskedElsewhereNs = 5'000 * kMsNs;  // a lock is looked at so often; on a network volume
constexpr int64_t kMeasuredNs = 60'000 * kMsNs;         // what a node has that never told of it: so long that counts
constexpr int64_t kMeasuredUnreadNs = 10'000 * kMsNs;   // ... one that lives, perhaps, and cannot be read
constexpr int64_t kMeasureMostNs = 20 * kMsNs, kMeasureFirstNs = 200 * kMsNs;  // of each call, for each node; when it was just found
constexpr int64_t kMeasureAllNs = 400 * kMsNs;          // ... for all of them: the rest is measured by the calls that follow
constexpr uint64_t kWorthMeasuringBytes = kMiB;         // ... if that may make a difference

}  // namespace

// --- what they tell ---

void ClaimPeers::note(Known& known, const Head& head) const {
  if (std::pair(known.epoch, known.counter) != std::pair(head.identity.epoch, head.counter)) {  // it lives, or did since
    known.runs = true;
    known.asked_ns.reset();
    known.measured_ns.reset();
    known.measuring.reset();
    known.is_smaller_now = known.measure_again = false;
    if (known.counter > 0) {
      known.moved_ns = clock_.monotonic_ns();
      known.life = Life::kLives;
      known.absent = false;
      known.stands_since_ns.reset();
    }
  }
  known.epoch = head.identity.epoch;
  known.begun_epoch = std::max(known.begun_epoch, known.epoch);
  known.counter = head.counter;
  known.told.capacity_bytes = head.capacity_bytes;
  known.told.physical_bytes = head.physical_bytes;
  known.told.claim_bytes = head.claim_bytes;
  known.told.wish_bytes = head.wish_bytes;
  known.told.evictable_by_age = head.bytes_by_age;
}

void ClaimPeers::take_in(const std::map<std::string, Discovery::Node>& nodes) {
  const int64_t now_ns = clock_.monotonic_ns();
  const auto left_ns = [&] { return now_ns + kMeasureAllNs - clock_.monotonic_ns(); };
  std::erase_if(known_, [&](const auto& each) { return !nodes.contains(each.first) && now_ns - each.second.found_ns >= kForgottenNs; });
  for (const auto& [name, node] : nodes) {
    const auto [at, is_new] = known_.try_emplace(name);
    Known& known = at->second;
    if (is_new) known.found_ns = now_ns;
    const auto seen = node.head ? std::pair(node.head->identity.epoch, node.head->counter) : std::pair(uint32_t{0}, uint64_t{0});
    if (seen > std::pair(known.epoch, known.counter)) note(known, *node.head);
    // What was read here since is not taken back by what was seen before it: one that came back could be counted as gone.
    // A daemon that died before it had written the HEAD of its epoch has none there to be seen.
    const bool tells_nothing = !node.head && node.stands_since_ns && now_ns - known.moved_ns >= kOwnViewNs;
    if (seen >= std::pair(known.epoch, known.counter) || tells_nothing) {
      known.stands_since_ns = node.stands_since_ns;
      known.absent = node.presence == Discovery::Presence::kAbsent;
      const bool was_seen_lately = now_ns - std::max(known.found_ns, node.moved_ns.value_or(known.found_ns)) < kWatchedNs;
      switch (node.presence) {
        case Discovery::Presence::kLive: known.life = Life::kLives; break;
        case Discovery::Presence::kSilent: known.life = was_seen_lately ? Life::kMayLive : Life::kSilent; break;
        case Discovery::Presence::kAbsent: known.life = Life::kAbsent; break;
      }
    }
    if (!is_new) look_after(name, known, std::min(kMeasureMostNs, left_ns()));
  }
  for (auto& [name, known] : known_)
    if (known.found_ns == now_ns || !nodes.contains(name)) look_after(name, known, std::min(kMeasureFirstNs, left_ns()));
}

Status ClaimPeers::read_all() {
  slowest_ns_ = 0;
  int64_t begun_ns = clock_.monotonic_ns(), measured_ns = 0;
  const auto note_time = [&] {
    const int64_t now_ns = clock_.monotonic_ns();
    slowest_ns_ = std::max(slowest_ns_, now_ns - std::exchange(begun_ns, now_ns));
  };
  KVC_ASSIGN(const auto names, list_other_nodes(volume_, own_));
  std::erase_if(known_, [&names](const auto& each) { return !names.contains(each.first); });
  Status all_read;
  for (const std::string& name : names) {
    note_time();
    const auto [at, is_new] = known_.try_emplace(name);
    Known& known = at->second;
    if (is_new) known.found_ns = clock_.monotonic_ns();
    const auto told = read(name, known);
    note_time();
    if (told) {
      known.unread_since_ns.reset();
    } else {
      if (!known.unread_since_ns) known.unread_since_ns = clock_.monotonic_ns();
      known.head.reset();
    }
    look_after(name, known, std::min(is_new ? kMeasureFirstNs : kMeasureMostNs, kMeasureAllNs - measured_ns));
    const int64_t looked_after_ns = clock_.monotonic_ns();
    measured_ns += looked_after_ns - std::exchange(begun_ns, looked_after_ns);
    if (!told && !is_gone(known) && !is_unreadable(known)) all_read = std::unexpected(told.error());
  }
  note_time();
  return all_read;
}

// The HEAD of its last life that has one: while a daemon starts, that of the one before holds. False: there is none.
Result<bool> ClaimPeers::read(const std::string& name, Known& known) {
  KVC_ASSIGN(const auto epochs, list_epochs(volume_, name));
  const uint32_t begun = epochs.empty() ? 0 : epochs.back();
  if (std::exchange(known.begun_epoch, begun) != begun) {  // it may have used more since, and told nothing of it
    known.runs = true;
    known.asked_ns.reset();
    known.measured_ns.reset();
    known.measuring.reset();
  }
  for (size_t at = epochs.size(); at-- > 0;) {
    KVC_ASSIGN(const bool has_one, read_epoch(name, epochs[at], known));
    if (has_one) return true;
  }
  return false;
}

// One that was cut short while it was made is none.
Result<bool> ClaimPeers::read_epoch(const std::string& name, uint32_t epoch, Known& known) {
  FileIdentity identity = own_;
  identity.node = name;
  identity.epoch = epoch;
  FilePtr head = known.head_epoch == epoch ? std::exchange(known.head, nullptr) : nullptr;
  if (!head) {
    KVC_ASSIGN(head, open_slots(volume_, identity, kHeadFileName));
    if (!head) return false;
  }
  auto told = read_head(*head, identity, buffer_);
  const auto is_torn = [&told] { return !told && told.error().code == Code::kCorrupt; };
  // It was whole: both of its slots were written while they were read.
  const bool was_whole = known.epoch == epoch && known.counter > 0;
  if (is_torn() && was_whole) told = read_head(*head, identity, buffer_);
  if (is_torn() && !was_whole) return false;
  KVC_TRY(told);
  if (std::pair(epoch, told->counter) >= std::pair(known.epoch, known.counter)) note(known, *told);
  known.head = std::move(head);
  known.head_epoch = epoch;
  return true;
}

// --- what else is found out ---

void ClaimPeers::look_after(const std::string& name, Known& known, int64_t most_ns) {
  if (known.life != Life::kLives) ask_for_lock(name, known);
  if (most_ns > 0 && is_to_be_measured(known)) measure(name, known, most_ns);
}

// Where it cannot be looked at the node may run.
void ClaimPeers::ask_for_lock(const std::string& name, Known& known) const {
  const int64_t now_ns = clock_.monotonic_ns();
  if (known.asked_ns && now_ns - *known.asked_ns < (volume_.features().network ? kAskedElsewhereNs : kAskedNs)) return;
  const bool ran = known.runs;
  known.runs = is_locked(volume_, "nodes/" + name + "/LOCK").value_or(true);
  known.asked_ns = now_ns;
  if (!known.runs) look_for_giving_back(name, known);
  if (ran == known.runs) return;
  known.measured_ns.reset();
  known.measuring.reset();
}

// Other nodes give back what its part holds for nothing, and write into its LOCK behind that (idle_part.h). Its HEAD tells what was before.
void ClaimPeers::look_for_giving_back(const std::string& name, Known& known) const {
  const auto lock = volume_.info("nodes/" + name + "/LOCK");
  if (!lock || std::exchange(known.lock_written_ns, lock->mtime_ns) == lock->mtime_ns) return;
  const auto head = volume_.info(epoch_directory(name, known.epoch) + "/" + kHeadFileName);
  if (!head || lock->mtime_ns <= head->mtime_ns) return;
  known.is_smaller_now = known.measure_again = true;
  known.measuring.reset();
}

bool ClaimPeers::is_gone(const Known& known) const {
  if (known.life == Life::kLives) return false;
  if (!volume_.features().network) return !known.runs;
  const bool stood = known.stands_since_ns && clock_.monotonic_ns() - *known.stands_since_ns >= kSilentNs;
  return known.absent || (stood && !known.runs);
}

bool ClaimPeers::is_unreadable(const Known& known) const {
  return known.unread_since_ns && clock_.monotonic_ns() - *known.unread_since_ns >= kSilentNs;
}

bool ClaimPeers::is_to_be_measured(const Known& known) const {
  if (known.counter == 0 || is_unreadable(known)) return true;
  return is_gone(known) && (known.is_smaller_now || less_bytes(known.told.claim_bytes, known.told.physical_bytes) >= kWorthMeasuringBytes);
}

// What cannot be listed or looked at is tried again later, from the beginning: until then what was known counts.
void ClaimPeers::measure(const std::string& name, Known& known, int64_t most_ns) const {
  const int64_t now_ns = clock_.monotonic_ns();
  const int64_t counts_ns = is_gone(known) && known.counter > 0 ? INT64_MAX : is_unreadable(known) ? kMeasuredUnreadNs : kMeasuredNs;
  if (known.measured_ns && !known.measure_again && now_ns - *known.measured_ns < counts_ns) return;
  if (!known.measuring) known.measuring.emplace(name);
  const auto bytes = known.measuring->go_on(volume_, clock_, most_ns);
  if (bytes && !*bytes) return;
  known.measuring.reset();
  if (!bytes) return;
  known.measured_bytes = **bytes;
  known.measured_ns = now_ns;
  known.measure_again = false;
}

// --- what counts ---

PeerFigures ClaimPeers::counted(const Known& known) const {
  PeerFigures figures = known.told;
  figures.life = is_gone(known) ? Life::kGone : known.life;
  if (known.counter == 0 && !known.measured_ns) {
    figures.claim_bytes = kUnknownClaim;
    figures.life = Life::kMayLive;  // worth a wait
  } else if (known.counter == 0) {
    figures.claim_bytes = figures.physical_bytes = known.measured_bytes;
  } else if (figures.life == Life::kGone) {
    figures.physical_bytes = known.measured_ns ? known.measured_bytes : known.told.taken_bytes();
  } else if (is_unreadable(known)) {
    const uint64_t there = known.measured_ns ? known.measured_bytes : 0;
    figures.claim_bytes = add_bytes(std::max(known.told.taken_bytes(), there), claim_grain(figures.capacity_bytes));
  }
  return figures;
}

std::vector<PeerFigures> ClaimPeers::figures() const {
  std::vector<PeerFigures> all;
  for (const auto& [name, known] : known_) all.push_back(counted(known));
  return all;
}

}  // namespace kvcachefs
