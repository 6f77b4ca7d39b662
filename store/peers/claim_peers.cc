#include "store/peers/claim_peers.h"

#include <algorithm>
#include <utility>

#include "store/journal/file_header.h"
#include "store/peers/slot_reader.h"
#include "store/volume/lock_probe.h"

namespace kvcachefs {

namespace {

constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kWatchedNs = 10'000 * kMsNs;    // a node that gave no sign of life for so long is not expected to give room
constexpr int64_t kOwnViewNs = 5'000 * kMsNs;     // for so long this object's own last read counts as newer than what take_in() is given
constexpr int64_t kForgottenNs = 10'000 * kMsNs;  // the list given to take_in() may be older than the last one read here: a node missing in it is kept for so long
constexpr int64_t kAskedNs = 1'000 * kMsNs, kAskedElsewhereNs = 5'000 * kMsNs;  // how often a lock is probed; the same on a network volume
constexpr int64_t kMeasuredNs = 60'000 * kMsNs;         // how long a measurement counts for a node that never wrote a HEAD
constexpr int64_t kMeasuredUnreadNs = 10'000 * kMsNs;   // the same for a node that cannot be read and may live
constexpr int64_t kMeasureMostNs = 20 * kMsNs, kMeasureFirstNs = 200 * kMsNs;  // time to measure, for each call and node; the same for a node just found
constexpr int64_t kMeasureAllNs = 400 * kMsNs;          // time to measure all nodes in one call: later calls measure the rest
constexpr uint64_t kWorthMeasuringBytes = kMiB;         // a node is measured only if that can make this much difference

}  // namespace

// --- what they tell ---

void ClaimPeers::note(Known& known, const Head& head) const {
  if (std::pair(known.epoch, known.counter) != std::pair(head.identity.epoch, head.counter)) {  // a new HEAD: it lives, or did since the last one
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
    // What was read here later is not overridden by what Discovery saw earlier: a node that came back could be counted as gone.
    // A daemon that died before it wrote its epoch's HEAD leaves none for Discovery to see.
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

// Reads the HEAD of the node's last life that has one: while a daemon starts, the HEAD of its life before holds. False: there is none.
Result<bool> ClaimPeers::read(const std::string& name, Known& known) {
  KVC_ASSIGN(const auto epochs, list_epochs(volume_, name));
  const uint32_t begun = epochs.empty() ? 0 : epochs.back();
  if (std::exchange(known.begun_epoch, begun) != begun) {  // a new life may have used more since, and told nothing of it
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

// A HEAD whose writing was cut short when it was made counts as none.
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
  // It was whole before: both of its slots were written during the read.
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

// Where the lock cannot be probed the node is taken to run.
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

// Other nodes give back the idle space of its part, and write into its LOCK after that (idle_part.h). Its HEAD tells the size before it.
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

// If something cannot be listed or looked at, measuring starts over later: until then the earlier figure counts.
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
