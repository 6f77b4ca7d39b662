#include "store/peers/peers.h"

#include <sys/random.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "store/base/boot_id.h"
#include "store/base/descriptors.h"
#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/journal/journal_file.h"
#include "store/peers/peers_peer.h"

namespace kvcachefs {
namespace {

constexpr int64_t kSecondNs = Peers::kSecondNs;
constexpr int64_t kAbsentPollNs = 10 * kSecondNs;   // nobody writes there; a node without a HEAD may still
constexpr int64_t kQuietPollNs = 2 * kSecondNs;     // no client here would see the result; a client that comes waits for a round, a second at most
constexpr int64_t kQuietNs = 60 * kSecondNs;
constexpr int64_t kIdleNs = 5 * kSecondNs;          // after so long without a request the other nodes are looked at seldom
constexpr int64_t kSeldomLookNs = 2 * kSecondNs;
constexpr int64_t kWritesNs = 10 * kSecondNs;       // ... but a peer that is nearly full and has written within this time waits to hear how far this node is
constexpr int64_t kReadNs = kSecondNs / 200;        // each poll reads a tail: at most 200 a second
constexpr int64_t kFollowedNs = 60 * kSecondNs;     // followed for so long after a load, so the load was worth its cost
constexpr int64_t kRetryNs = kSecondNs / 20;
constexpr int64_t kForgetNs = 60 * kSecondNs;

constexpr int64_t kAnswersNs = Peers::kSecondNs / 4;  // HEAD, ACKS and listings wait meanwhile

// As eviction does, for which writers may wait. A replacement gives a place up as well, but nothing waits for that.
bool gives_a_place_up(const Record& record) {
  return std::holds_alternative<UnnameRecord>(record) || std::holds_alternative<MoveRecord>(record);
}

// The HEAD of each node that is not absent had moved at the last look. One that stands is looked at each second.
bool all_moved(const std::map<std::string, Discovery::Node>& nodes, int64_t looked_ns) {
  using Presence = Discovery::Presence;
  return std::ranges::all_of(nodes, [looked_ns](const auto& each) {
    const Discovery::Node& node = each.second;
    if (node.ordinal == 0 || node.presence == Presence::kAbsent) return true;
    return node.presence == Presence::kLive && node.stands_since_ns && *node.stands_since_ns >= looked_ns;
  });
}

}  // namespace

Peers::Peers(Parts parts)
    : parts_(std::move(parts)),
      host_(node_name_of_host()),
      boot_id_(boot_id()),
      poll_every_ns_(parts_.poll_every_ns),
      head_(parts_.volume, parts_.own),
      acks_(parts_.volume, parts_.own) {
  if (::getrandom(instance_.data(), instance_.size(), 0) != static_cast<ssize_t>(instance_.size()))
    log::warn("no random number for HEAD: another daemon under this node's name is told by its host");
  auto ordinals = read_ordinals(parts_.directory + "/.ordinals");
  if (!ordinals) log::warn("numbers of peers are given anew: {}", ordinals.error().message);
  kept_ordinals_ = ordinals.value_or(Ordinals());
  discovery_ = std::make_unique<Discovery>(parts_.volume, parts_.own, parts_.clock, kept_ordinals_, parts_.limits);
  if (parts_.claim_user != nullptr)
    claims_ = std::make_unique<ClaimHolder>(ClaimHolder::Parts{
        *parts_.volume, parts_.own, parts_.clock, *parts_.claim_user,
        [this](const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes) { return tell_head(own, claim_bytes, wish_bytes); },
        parts_.limits.slow_read_ns});
}

Peers::~Peers() = default;

int64_t Peers::round() {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (ending_) return now_ns + kSecondNs;
  {
    const std::lock_guard lock(mutex_);
    if (!asked_.empty()) refreshed_since_ns_ = now_ns;
    std::ranges::move(asked_, std::back_inserter(refreshes_));
    asked_.clear();
  }
  const bool thorough = !refreshes_.empty();
  note_requests(now_ns);
  look(thorough, now_ns);
  take_in_nodes();
  write_head(now_ns);
  keep_ordinals(now_ns);
  load_due(thorough);
  if (!ending_ && show()) poll_due(thorough);
  commit_due();
  for (const auto& [name, peer] : peers_) tell_trouble(*peer);
  forget_answered(parts_.clock.monotonic_ns());
  remove_leaving();
  write_acks(parts_.clock.monotonic_ns());
  for (const auto& [name, peer] : peers_) publish(*peer);
  if (parts_.settle) parts_.settle(thorough);
  answer_refreshes();
  return next_round_ns();
}

// --- which nodes there are ---

void Peers::look(bool thorough, int64_t now_ns) {
  thorough |= look_soon_.exchange(false);
  if (!thorough && looked_ns_ && now_ns - *looked_ns_ < look_every_ns_) return;
  using Listing = Discovery::Listing;
  discovery_->look(thorough ? Listing::kAll : quiet_ && look_every_ns_ == kSeldomLookNs ? Listing::kSeldom : Listing::kWhereDue);
  looked_ns_ = now_ns;
  note_problem("nodes", discovery_->problem().empty() ? Status() : fail(Code::kIo, discovery_->problem()));
}

void Peers::take_in_nodes() {
  const auto& nodes = discovery_->nodes();
  for (auto each = peers_.begin(); each != peers_.end();) {
    if (nodes.contains(each->first)) {
      ++each;
      continue;
    }
    log::info("peer {}: the volume does not have this node any more", each->first);
    {
      const std::lock_guard lock(mutex_);
      known_.erase(each->first);
      by_ordinal_.erase(each->second->ordinal);
      indexes_.erase(each->second->ordinal);
      positions_.erase(each->second->ordinal);
    }
    if (each->second->has_part()) unshown_.push_back(each->second->ordinal);
    if (each->second->replica) gone_.push_back(std::move(each->second));
    each = peers_.erase(each);
  }
  for (const auto& [name, node] : nodes) {
    const bool leaves = std::ranges::any_of(leaving_, [&name](const Leaving& each) { return each.node == name; }) ||
                        std::ranges::any_of(gone_, [&name](const PeerPtr& each) { return each->node == name; });
    if (leaves || peers_.contains(name)) continue;
    const auto& peer = peers_[name] = make_peer(name, node);
    publish(*peer);
  }
  followed_ = static_cast<size_t>(
      std::ranges::count_if(nodes, [](const auto& each) { return each.second.presence != Discovery::Presence::kAbsent; }));
  if (looked_ns_ && discovery_->problem().empty() && !std::exchange(removed_unknown_, true)) remove_unknown_directories();
}

Peers::PeerPtr Peers::make_peer(const std::string& name, const Discovery::Node& node) {
  auto peer = std::make_unique<Peer>();
  peer->node = name;
  peer->ordinal = node.ordinal;
  peer->found_ns = parts_.clock.monotonic_ns();
  if (node.ordinal == 0) return peer;
  FileIdentity identity = parts_.own;
  identity.node = name;
  identity.epoch = 0;
  std::error_code error;
  std::filesystem::create_directories(parts_.directory, error);
  if (error) log::warn("{}: {}", parts_.directory, error.message());
  peer->replica = std::make_unique<Replica>(Replica::Setup{parts_.volume, identity, directory_of(name), node.ordinal, [this] { let_go_soon_ = true; }});
  peer->extents = std::make_shared<Extents>(parts_.volume, identity, std::min<size_t>(parts_.open_extents, descriptor_shares().open_extents / 4),
                                            Extents::Whose::kPeers);
  generations_.note(node.ordinal, name, parts_.own.volume_uuid);
  const std::lock_guard lock(mutex_);
  by_ordinal_[node.ordinal] = {name, peer->extents};
  return peer;
}

// --- loading ---

// Loads one peer a round, for a load may take long; living peers first. For a refresh it loads all.
void Peers::load_due(bool thorough) {
  const auto& nodes = discovery_->nodes();
  std::vector<Peer*> due;
  for (const auto& [name, peer] : peers_) {
    const auto node = nodes.find(name);
    if (!peer->replica || !peer->replica->wants_load() || node == nodes.end() || node->second.epoch == 0) continue;
    const int64_t due_from_ns = !thorough ? due_ns(*peer) : is_loaded_for_refresh(*peer) ? peer->load_pause.next_try_ns() : INT64_MIN;
    if (due_from_ns <= parts_.clock.monotonic_ns()) due.push_back(peer.get());
  }
  std::ranges::sort(due, {}, [&nodes](const Peer* peer) { return std::pair(nodes.at(peer->node).presence, std::string_view(peer->node)); });
  for (Peer* const peer : due) {
    if (ending_) return;
    if (!may_load(*peer)) continue;
    load(*peer);
    if (!thorough) return;
  }
}

// A refresh waits: for it the pause between loads is ignored, once.
bool Peers::is_loaded_for_refresh(const Peer& peer) const { return peer.load_begun_ns && *peer.load_begun_ns >= refreshed_since_ns_; }

void Peers::load(Peer& peer) {
  const auto node = discovery_->nodes().find(peer.node);
  if (node == discovery_->nodes().end()) return;  // it went while the peer before it was loaded
  const auto outlook = [this, name = peer.node] {
    const auto now = discovery_->nodes().find(name);
    return now == discovery_->nodes().end() ? Outlook() : now->second.outlook();
  };
  peer.load_begun_ns = parts_.clock.monotonic_ns();
  peer.load_pause.failed(*peer.load_begun_ns);
  loading_ = &peer;
  meanwhile_ns_ = next_round_ns();
  const Status loaded = peer.replica->load(outlook, {.has_read = [this](const std::string& by, JournalPosition position) { return has_read(by, position); },
                                                     .meanwhile = [this] { return meanwhile(); },
                                                     .applied = parts_.loaded});
  loading_ = nullptr;
  if (loaded) unshown_.push_back(peer.ordinal);  // also when ending: no ACKS are written for a part that is not shown
  if (ending_) return;
  peer.failed = !loaded;
  if (!loaded) {
    peer.pause.failed(parts_.clock.monotonic_ns());
  } else {
    peer.loaded_ns = parts_.clock.monotonic_ns();
    peer.polled_ns.reset();
    acks_soon_ = true;  // the peer gives no space back before it has ACKS from here
    static_cast<void>(show());
  }
  publish(peer);
}

// A load can take minutes; other work must not wait for it. take_in_nodes() is not called: the set of peers stays as it is.
Status Peers::meanwhile() {
  if (ending_) return fail(Code::kCanceled, "the node's daemon ends");
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns < meanwhile_ns_) return {};
  note_requests(now_ns);
  write_head(now_ns);
  look(false, now_ns);
  if (show()) poll_due(false);
  static_cast<void>(tell_growth());
  write_acks(parts_.clock.monotonic_ns());
  for (const auto& [name, peer] : peers_) publish(*peer);
  meanwhile_ns_ = next_round_ns();
  return {};
}

// Brings the view up to the current parts; until that succeeds nothing is applied.
Status Peers::show() {
  if (unshown_.empty() && gone_.empty()) return {};
  Status shown = parts_.alone([this]() -> Status {
    std::vector<Part> parts;
    for (const auto& [name, peer] : peers_)
      if (peer->has_part()) parts.push_back(peer->replica->part());
    parts_.view.set_peers(std::move(parts));
    for (const auto& [name, peer] : peers_)
      if (peer->has_part()) set_position(peer->ordinal, peer->replica->position());
    for (const uint32_t ordinal : unshown_)
      if (parts_.replaced) parts_.replaced(ordinal);
    return {};
  });
  if (!shown) return shown;
  unshown_.clear();
  for (const PeerPtr& peer : gone_) leaving_.push_back({peer->node, peer->replica->part().index});
  gone_.clear();
  return {};
}

// --- following ---

void Peers::poll_due(bool thorough) {
  const auto& nodes = discovery_->nodes();
  for (const auto& [name, peer] : peers_) {
    const auto node = nodes.find(name);
    if (ending_ || !peer->replica || peer.get() == loading_ || peer->replica->wants_load() || node == nodes.end()) continue;
    if (!thorough && due_ns(*peer) > parts_.clock.monotonic_ns()) continue;
    poll(*peer, node->second, thorough);
  }
  poll_answers(thorough);
}

// Two peers that answer each other are read by turns, each up to the other's next answer: at once, until neither gets further. If they keep writing
// answers, the rest is due in the next round, which is also at once.
void Peers::poll_answers(bool thorough) {
  const int64_t until_ns = parts_.clock.monotonic_ns() + kAnswersNs;
  for (bool moves = true; moves;) {
    moves = false;
    std::set<std::string> asked;
    for (const auto& [name, peer] : peers_)
      if (!peer->waits_for.empty()) asked.insert({name, peer->waits_for});
    for (const std::string& name : asked) {
      const auto found = peers_.find(name);
      const auto node = discovery_->nodes().find(name);
      if (ending_ || found == peers_.end() || node == discovery_->nodes().end()) continue;
      Peer& peer = *found->second;
      const int64_t now_ns = parts_.clock.monotonic_ns();
      if (!peer.replica || &peer == loading_ || peer.replica->wants_load() || !peer.pause.may_try(now_ns)) continue;
      if (now_ns >= until_ns) {
        peer.polled_ns.reset();
        continue;
      }
      const auto before = std::pair(peer.replica->position(), peer.waits_for);
      poll(peer, node->second, thorough);
      moves |= before != std::pair(peer.replica->position(), peer.waits_for);
    }
  }
}

void Peers::poll(Peer& peer, const Discovery::Node& node, bool thorough) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  peer.polled_ns = now_ns;
  ++peer.polls;
  Outlook outlook = node.outlook();
  // Where the journal does not say that it goes on in another file, HEAD does, within two seconds; a refresh does not wait for that.
  if (const JournalPosition at = peer.replica->position(); thorough && at.epoch == outlook.epoch && at.offset > 0) {
    const auto seqs = list_seqs(*parts_.volume, journal_directory(peer.node, at.epoch), ".log");
    if (seqs && !seqs->empty() && seqs->back() > at.seq) outlook.written = std::max(outlook.written, std::optional(JournalPosition{at.epoch, seqs->back(), 0}));
  }
  const auto change = [this, &peer](const PeerBatch& batch, const std::function<Status()>& work) {
    return parts_.alone([&]() -> Status {
      if (parts_.applying) parts_.applying(peer.ordinal, batch.batch);
      KVC_TRY(parts_.view.change(peer.ordinal, batch.batch, work));
      ++peer.batches;
      set_position(peer.ordinal, batch.after);
      acks_soon_ |= !batch.replaced.empty() || std::ranges::any_of(batch.batch.records, gives_a_place_up);
      if (parts_.applied) parts_.applied(peer.ordinal, batch);
      return {};
    });
  };
  const auto polled = peer.replica->poll(outlook, now_ns, change,
                                         [this](const std::string& by, JournalPosition position) { return has_read(by, position); });
  if (ending_ && !polled) return;
  if (!peer.replica->awaits_checkpoint()) peer.awaits_checkpoint_ns.reset();
  else if (!peer.awaits_checkpoint_ns) peer.awaits_checkpoint_ns = now_ns;
  peer.failed = !polled;
  peer.waits_for = polled ? polled->waits_for : std::string();
  peer.behind = polled && (polled->more || !peer.waits_for.empty());
  set_position(peer.ordinal, peer.replica->position());
  if (!polled) {
    peer.pause.failed(parts_.clock.monotonic_ns());
  } else {
    if (polled->more) peer.polled_ns.reset();
    peer.pause.succeeded();
    if (peer.loaded_ns && now_ns - *peer.loaded_ns >= kFollowedNs) peer.load_pause.succeeded();
  }
}

// True also for a peer of which nothing is shown yet: its names are absent, whatever statements say of them.
bool Peers::has_read(const std::string& node, JournalPosition position) const {
  const auto peer = peers_.find(node);
  return peer == peers_.end() || !peer->second->has_part() || peer->second->replica->position() >= position;
}

// Forgets statements of peers about other nodes' objects that were answered by the last call, a minute ago.
void Peers::forget_answered(int64_t now_ns) {
  if (peers_.empty() || (forgot_ns_ && now_ns - *forgot_ns_ < kForgetNs)) return;
  forgot_ns_ = now_ns;
  std::map<std::pair<std::string, std::string>, JournalPosition> answers;
  const auto note = [&](const Peer& by, const std::string& node, const Statements& answering) {
    const auto said = by.has_part() ? by.replica->part().statements : nullptr;
    if (said && said->speaks_of(node, {})) answers[{by.node, node}] = answering.seen(by.node);
  };
  if (parts_.own_statements) {  // which other threads change
    static_cast<void>(parts_.alone([&]() -> Status {
      for (const auto& [name, by] : peers_) note(*by, parts_.own.node, *parts_.own_statements);
      return {};
    }));
  }
  for (const auto& [name, by] : peers_)
    for (const auto& [other, peer] : peers_)
      if (peer != by && peer->has_part() && peer->replica->part().statements) note(*by, other, *peer->replica->part().statements);
  for (const auto& [pair, now] : answers) {
    const auto before = answers_.find(pair);
    if (before == answers_.end()) continue;
    const Status forgot = peers_.at(pair.first)->replica->forget(pair.second, before->second, parts_.alone);
    if (!forgot) return log::warn("statements that are answered are not forgotten: {}", forgot.error().message);
  }
  answers_ = std::move(answers);
}

// Logs a problem once, until it is over. A held replica logs its own.
void Peers::tell_trouble(Peer& peer) {
  const auto node = discovery_->nodes().find(peer.node);
  if (!peer.replica || node == discovery_->nodes().end()) return;
  std::string trouble;
  if (node->second.epoch == 0) trouble = node->second.problem;
  if (peer.failed && peer.replica->state() == Replica::State::kUnreadable) trouble = peer.replica->reason();
  if (!trouble.empty() && peer.trouble.empty()) log::warn("peer {}: cannot be read: {}", peer.node, trouble);
  if (trouble.empty() && !peer.trouble.empty()) log::info("peer {}: is read again", peer.node);
  peer.trouble = std::move(trouble);
}

// --- when ---

void Peers::note_requests(int64_t now_ns) {
  if (!parts_.requests) return;
  const uint64_t requests = parts_.requests();
  if (std::exchange(requests_, requests) != requests || !asked_for_ns_) asked_for_ns_ = now_ns;
  quiet_ = now_ns - *asked_for_ns_ >= kQuietNs;
  // On a network volume each look at a node is a call to the server.
  look_every_ns_ = kSecondNs;
  const bool idle = now_ns - *asked_for_ns_ >= kIdleNs && parts_.volume->features().network;
  if (!idle || !looked_ns_ || !all_moved(discovery_->nodes(), *looked_ns_)) return;
  const std::lock_guard lock(claim_mutex_);
  if (!claims_ || claims_->has_plenty()) look_every_ns_ = kSeldomLookNs;
}

int64_t Peers::poll_period_ns(const Discovery::Node& node) const {
  const bool absent = node.presence == Discovery::Presence::kAbsent;
  const bool waits = node.is_nearly_full() && node.wrote_ns && parts_.clock.monotonic_ns() - *node.wrote_ns < kWritesNs;
  const int64_t least_ns = absent ? kAbsentPollNs : quiet_ && !waits ? kQuietPollNs : static_cast<int64_t>(followed_) * kReadNs;
  return std::max(poll_every_ns_.load(), least_ns);
}

// INT64_MIN: at once.
int64_t Peers::due_ns(const Peer& peer) const {
  const auto node = discovery_->nodes().find(peer.node);
  if (!peer.replica || node == discovery_->nodes().end() || node->second.epoch == 0 || &peer == loading_) return INT64_MAX;
  if (peer.replica->wants_load()) return std::max({peer.load_pause.next_try_ns(), peer.pause.next_try_ns(), peer.look_again_ns});
  if (!peer.polled_ns) return peer.pause.next_try_ns();
  return std::max(*peer.polled_ns + poll_period_ns(node->second), peer.pause.next_try_ns());
}

int64_t Peers::next_round_ns() const {
  const auto after = [](const std::optional<int64_t>& last_ns, int64_t every_ns) { return last_ns ? *last_ns + every_ns : INT64_MIN; };
  int64_t next_ns = std::min(after(looked_ns_, look_every_ns_), after(head_ns_, kSecondNs));
  if (claims_) next_ns = std::min(next_ns, claim_due_ns());
  if (acks_soon_ && acks_ns_) next_ns = std::min(next_ns, *acks_ns_ + kAcksSoonNs);
  // During a load only polls count: other peers are loaded after it.
  for (const auto& [name, peer] : peers_)
    if (loading_ == nullptr || !peer->replica || !peer->replica->wants_load()) next_ns = std::min(next_ns, due_ns(*peer));
  if (loading_ == nullptr && !refreshes_.empty())
    next_ns = std::min(next_ns, parts_.clock.monotonic_ns() + std::min(poll_every_ns_.load(), kRetryNs));
  // The view could not be changed just now, and nothing is polled before that succeeds.
  const int64_t now_ns = parts_.clock.monotonic_ns();
  return std::max(next_ns, !unshown_.empty() || !gone_.empty() ? now_ns + kRetryNs : now_ns);
}

}  // namespace kvcachefs
