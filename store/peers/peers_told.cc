// What Peers tells: to other nodes by HEAD and ACKS, and to other threads of this node.
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/journal/file_header.h"
#include "store/peers/peers_peer.h"
#include "store/peers/slot_reader.h"
#include "store/volume/lock_probe.h"

namespace kvcachefs {

namespace {
constexpr int64_t kUnheardMs = 10'000;  // HEADs are read every one to two seconds, except during the longest steps of a load
constexpr int64_t kCheckpointPatienceNs = 10 * Peers::kSecondNs;  // a daemon that begins makes the checkpoint within seconds

// The node's LOCK is free, so no daemon reads anything under its name. On a network volume a lock proves less: there its HEAD must also have
// stood for a while.
bool has_ended(Volume& volume, const std::string& node, std::optional<int64_t> stood_ns) {
  constexpr int64_t kStoodNs = 5 * Peers::kSecondNs;
  if (volume.features().network && stood_ns.value_or(0) < kStoodNs) return false;
  return !is_locked(volume, "nodes/" + node + "/LOCK").value_or(true);
}

// What the ACKS of one epoch of a node tell of this node's journals.
struct Told {
  JournalPosition applied;  // zeros: nothing is known
  std::vector<ObjectId> pinned;
  std::string reason;  // why nothing is known; empty: `applied` is known
};

Told told_by(Volume& volume, const FileIdentity& own, const std::string& node, uint32_t epoch) {
  Told told;
  told.reason = fmt::format("{} has no ACKS", epoch_directory(node, epoch));
  const auto read = [&]() -> Status {
    FileIdentity identity = own;
    identity.node = node;
    identity.epoch = epoch;
    KVC_ASSIGN(const FilePtr file, open_slots(volume, identity, kAcksFileName));
    if (!file) return {};
    BlockBuffer buffer;
    KVC_ASSIGN(Acks acks, read_acks(*file, identity, buffer));
    told.reason = "it has read nothing of this node";
    const auto here = std::ranges::find(acks.peers, own.node, &Acks::Peer::node);
    if (here != acks.peers.end()) told = {here->applied, std::move(here->pinned), {}};
    return {};
  };
  if (Status done = read(); !done) told.reason = std::move(done).error().message;
  return told;
}

}  // namespace

using Presence = Discovery::Presence;

const char* peer_state_name(PeerStatus::State state) {
  using State = PeerStatus::State;
  switch (state) {
    case State::kLive: return "live";
    case State::kSilent: return "silent";
    case State::kAbsent: return "absent";
    case State::kLoading: return "loading";
    case State::kHeld: return "held";
    case State::kUnreadable: return "unreadable";
    case State::kLeftOut: return "left out";
  }
  return "unknown";
}

// --- to the others ---

void Peers::write_head(int64_t now_ns) {
  if (claims_) return step_claim(now_ns);
  const bool soon = head_soon_.exchange(false);
  if (!soon && head_ns_ && now_ns - *head_ns_ < kSecondNs) return;
  head_ns_ = now_ns;
  if (peers_.empty()) return;  // there is nobody to tell
  note_problem("HEAD", tell_head({}, 0, 0));
}

void Peers::write_acks(int64_t now_ns) {
  if (acks_ns_ && now_ns - *acks_ns_ < (acks_soon_ ? kAcksSoonNs : kSecondNs)) return;
  acks_ns_ = now_ns;
  acks_soon_ = false;
  auto acks = acks_to_write();
  if (!acks) return;
  const auto peers = acks->peers;
  const Status written = acks_.write(std::move(*acks));  // peers left out give nothing back until they fit
  note_problem("ACKS", written);
  if (written) written_acks_ = peers;
}

// nullopt if ACKS did not change, or while the view does not show what was read: places still shown must not be given up.
std::optional<Acks> Peers::acks_to_write() const {
  if (!unshown_.empty()) return std::nullopt;
  Acks acks;
  std::vector<uint32_t> ordinals;
  for (const auto& [name, peer] : peers_) {
    const auto told = std::ranges::find(written_acks_, name, &Acks::Peer::node);
    if (peer->has_part()) acks.peers.push_back({name, peer->replica->position(), {}});
    else if (peer->replica && told != written_acks_.end()) acks.peers.push_back({name, told->applied, {}});  // being loaded anew; clients read on from open files
    else continue;
    ordinals.push_back(peer->ordinal);
  }
  if (parts_.pinned) {
    const Status asked = parts_.alone([&]() -> Status {
      for (size_t at = 0; at < ordinals.size(); ++at) acks.peers[at].pinned = parts_.pinned(ordinals[at]);
      return {};
    });
    if (!asked) return std::nullopt;
  }
  // Nodes that are gone: one that comes back must not use an epoch again that was read here.
  constexpr size_t kMostGone = 16;
  std::vector<Acks::Peer> gone;
  for (const Acks::Peer& told : written_acks_)
    if (gone.size() < kMostGone && std::ranges::find(acks.peers, told.node, &Acks::Peer::node) == acks.peers.end()) gone.push_back({told.node, told.applied, {}});
  std::ranges::move(gone, std::back_inserter(acks.peers));
  std::ranges::sort(acks.peers, {}, &Acks::Peer::node);
  if (acks.peers == written_acks_) return std::nullopt;
  return acks;
}

// Logs a problem once, until it is over.
void Peers::note_problem(const char* of, const Status& status) {
  const std::string text = status ? std::string() : status.error().message;
  std::string before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(problems_[of], text);
  }
  if (before.empty() && !text.empty()) log::warn("{} for peers: {}", of, text);
  if (!before.empty() && text.empty()) log::info("{} for peers: good again", of);
}

// --- to other threads ---

void Peers::publish(const Peer& peer) {
  const auto& nodes = discovery_->nodes();
  const auto found = nodes.find(peer.node);
  if (found == nodes.end()) return;
  const Discovery::Node& node = found->second;
  Known known;
  known.presence = node.presence;
  known.was_live = node.presence == Presence::kLive;
  known.still_since_ns = node.moved_ns.value_or(peer.found_ns);
  known.stands_since_ns = node.stands_since_ns;
  known.looked_ns = parts_.clock.monotonic_ns();
  PeerStatus& status = known.status;
  using State = PeerStatus::State;
  status.node = peer.node;
  status.ordinal = peer.ordinal;
  status.epoch = node.epoch;
  status.state = node.presence == Presence::kLive ? State::kLive : node.presence == Presence::kSilent ? State::kSilent : State::kAbsent;
  status.reason = node.problem;
  if (node.head) {
    status.host = node.head->host;
    status.physical_bytes = node.head->physical_bytes;
    status.claim_bytes = node.head->claim_bytes;
  }
  if (!peer.replica) {
    status.state = State::kLeftOut;
  } else {
    const Replica& replica = *peer.replica;
    switch (replica.state()) {
      case Replica::State::kLoading: status.state = node.epoch == 0 && !node.problem.empty() ? State::kUnreadable : State::kLoading; break;
      case Replica::State::kHeld: status.state = State::kHeld; break;
      case Replica::State::kUnreadable: status.state = State::kUnreadable; break;
      case Replica::State::kLive: break;
    }
    if (!replica.reason().empty()) status.reason = replica.reason();
    if (status.reason.empty()) status.reason = peer.commit_problem;
    status.bytes_behind = replica.bytes_behind(node.outlook());
    status.objects = replica.objects();
    status.reloads = replica.reloads();
    status.records_left_out = replica.records_left_out();
    status.applied = replica.position();
  }
  status.polls = peer.polls;
  status.batches = peer.batches;
  std::shared_ptr<const Index> before_this;  // closed after the lock is released
  const std::lock_guard lock(mutex_);
  if (peer.has_part()) before_this = std::exchange(indexes_[peer.ordinal], peer.replica->part().index);
  Known& before = known_[peer.node];
  known.was_live |= before.was_live && node.presence == Presence::kSilent;
  before = std::move(known);
}

std::vector<PeerStatus> Peers::status() const {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  std::vector<PeerStatus> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, known] : known_) {
    all.push_back(known.status);
    PeerStatus& status = all.back();
    status.lag_ms = std::max<int64_t>(0, now_ns - known.still_since_ns) / 1'000'000;
    if (known.stands_since_ns) status.stands_ms = std::max<int64_t>(0, known.looked_ns - *known.stands_since_ns) / 1'000'000;
    // No round has finished since: the last published status is out of date.
    if (status.state != PeerStatus::State::kLive || status.lag_ms < kUnheardMs) continue;
    status.state = PeerStatus::State::kSilent;
    status.reason = fmt::format("nothing was read of it for {} s: the volume does not answer, or another node is being loaded", status.lag_ms / 1000);
  }
  return all;
}

std::string Peers::problem() const {
  std::string text;
  const std::lock_guard lock(mutex_);
  for (const auto& [of, problem] : problems_)
    if (!problem.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", of, problem);
  return text;
}

std::shared_ptr<Extents> Peers::extents_of(uint32_t ordinal) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_ordinal_.find(ordinal);
  return found == by_ordinal_.end() ? nullptr : found->second.second;
}

std::optional<std::string> Peers::node_of(uint32_t ordinal) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_ordinal_.find(ordinal);
  if (found == by_ordinal_.end()) return std::nullopt;
  return found->second.first;
}

std::optional<SuccessorsRecord> Peers::successors_of(ObjectId id) const {
  std::shared_ptr<const Index> index;
  {
    const std::lock_guard lock(mutex_);
    const auto found = indexes_.find(id.node_ordinal());
    if (found == indexes_.end()) return std::nullopt;
    index = found->second;
  }
  auto row = index->find_successors(id_there(id));
  if (!row || !*row) return std::nullopt;
  return successors_here(id.node_ordinal(), std::move(**row));
}

void Peers::set_position(uint32_t ordinal, JournalPosition position) {
  const std::lock_guard lock(mutex_);
  positions_[ordinal] = position;
}

JournalPosition Peers::position_of(uint32_t ordinal) const {
  const std::lock_guard lock(mutex_);
  const auto found = positions_.find(ordinal);
  return found == positions_.end() ? JournalPosition{} : found->second;
}

size_t Peers::known() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

bool Peers::has_peers() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(known_, [](const auto& each) { return each.second.was_live; });
}

// --- refresh ---

void Peers::refresh(Refreshed done) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) return asked_.push_back(std::move(done));
  }
  done(fail(Code::kCanceled, "the node's daemon ends"));
}

void Peers::answer_refreshes() {
  if (refreshes_.empty()) return;
  const std::optional<Status> result = refreshed();
  if (!result) return;
  for (Refreshed& done : std::exchange(refreshes_, {})) done(*result);
}

// The result of a thorough round. nullopt: not everything is there yet.
std::optional<Status> Peers::refreshed() const {
  if (ending_) return std::nullopt;
  if (!discovery_->problem().empty()) return fail(Code::kIo, discovery_->problem());
  if (!unshown_.empty() || !gone_.empty()) return std::nullopt;
  bool complete = true;
  for (const auto& [name, peer] : peers_) {
    const auto node = discovery_->nodes().find(name);
    if (!peer->replica || node == discovery_->nodes().end() || node->second.presence == Presence::kAbsent) continue;
    const Replica::State state = peer->replica->state();
    const bool unknown = node->second.epoch == 0 && !node->second.problem.empty();
    if (unknown) return fail(Code::kIo, fmt::format("peer {}: {}", name, node->second.problem));
    if (peer->awaits_checkpoint_ns && parts_.clock.monotonic_ns() - *peer->awaits_checkpoint_ns < kCheckpointPatienceNs && !peer->failed) {
      complete = false;  // the peer has just begun, and makes it first
      continue;
    }
    if (peer->failed || (state == Replica::State::kHeld && !peer->replica->wants_load())) return fail(Code::kIo, fmt::format("peer {}: {}", name, peer->replica->reason()));
    if (peer->replica->wants_load() && is_loaded_for_refresh(*peer) && peer->load_pause.next_try_ns() > parts_.clock.monotonic_ns() + kSecondNs)
      return fail(Code::kBusy, fmt::format("peer {}: it was loaded a moment ago, and has to be again", name));
    if (node->second.epoch != 0) complete &= !peer->replica->wants_load() && !peer->behind;
  }
  if (!complete) return std::nullopt;
  return Status();
}

// --- what they acknowledged ---

Peers::Acknowledged Peers::acknowledged_by_all(int64_t silent_ns) const {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  Acknowledged all;
  all.position = parts_.own_head().journal_end;
  all.position.epoch = parts_.own.epoch;
  // List the nodes after that: a node that comes later reads this node's journals at least up to there before it knows any name of it.
  const auto there = list_other_nodes(*parts_.volume, parts_.own);
  if (!there) return {{}, {}, "all nodes", there.error().message, {}, {{"all nodes", {}}}, false};
  struct WaitedFor {
    std::string name;
    uint32_t epoch;
    std::optional<int64_t> stood_ns;
  };
  std::vector<WaitedFor> waited_for;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& name : *there) {
      if (known_.contains(name)) continue;
      look_soon_ = true;
      return {{}, {}, name, "it has just come", {}, {{name, {}}}, false};
    }
    for (const auto& [name, known] : known_) {
      const auto stood_ns = known.stands_since_ns.transform([now_ns](int64_t since_ns) { return now_ns - since_ns; });
      const bool is_silent = known.presence == Presence::kSilent && stood_ns.value_or(-1) >= silent_ns;
      if (known.status.ordinal != 0 && known.presence != Presence::kAbsent && !is_silent) waited_for.push_back({name, known.status.epoch, stood_ns});
    }
  }
  const JournalPosition end = all.position;
  JournalPosition least;
  all.read_by_all = end;
  for (auto& [name, epoch, stood_ns] : waited_for) {
    Told told = told_by(*parts_.volume, parts_.own, name, epoch);
    if (told.applied < end) {  // its daemon may have started again since its HEAD was last read
      if (const auto epochs = list_epochs(*parts_.volume, name); epochs && !epochs->empty() && epochs->back() > epoch) {
        look_soon_ = true;
        stood_ns.reset();  // it was measured on the HEAD of the epoch before
        told = told_by(*parts_.volume, parts_.own, name, epochs->back());
      }
    }
    all.read_by_all = std::min(all.read_by_all, told.applied);
    // Probed last: a daemon that begins after the probe first reads this node's journals up to `end`.
    if ((told.applied < end || !told.pinned.empty()) && has_ended(*parts_.volume, name, stood_ns)) continue;
    all.pinned.insert(all.pinned.end(), told.pinned.begin(), told.pinned.end());
    all.nodes.push_back({name, told.applied});
    if (!all.by.empty() && told.applied >= least) continue;
    least = told.applied;
    all.by = name;
    all.reason = std::move(told.reason);
  }
  if (!all.by.empty()) all.position = std::min(all.position, least);
  std::ranges::sort(all.pinned);
  const auto same = std::ranges::unique(all.pinned);
  all.pinned.erase(same.begin(), same.end());
  return all;
}

}  // namespace kvcachefs
