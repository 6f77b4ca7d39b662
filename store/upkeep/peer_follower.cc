#include "store/upkeep/peer_follower.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "store/base/descriptors.h"
#include "store/base/log.h"
#include "store/base/thread.h"
#include "store/peers/part_size.h"

namespace kvcachefs {

namespace {
constexpr int64_t kAnswerAgainNs = 5'000'000'000;  // how often statements are looked through again: the journal may not have taken an answer
constexpr int64_t kForgetNs = 60'000'000'000;
constexpr int64_t kCloseNs = 1'000'000'000;
constexpr uint64_t kFewDescriptors = 256;
constexpr int64_t kSilentNs = 60'000'000'000;  // nothing is held for a node whose HEAD stood still for so long: its readers verify checksums
constexpr int64_t kMeasureNs = 1'000'000'000, kRoomNs = 100'000'000;
constexpr int64_t kTouchNs = 2'000'000'000;
constexpr int64_t kAnswerWaitsNs = 100'000'000;        // the same while a commit is under way that a statement refers to
constexpr int64_t kTouchAfterFailureNs = 10'000'000'000;
constexpr size_t kTouchesOfRecord = 4096, kMostUsedElsewhere = 1 << 20, kMostSuspected = 1 << 12;
constexpr int64_t kAcknowledgedNs = 250'000'000, kAcknowledgedSeldomNs = 2'000'000'000;
}  // namespace

PeerFollower::PeerFollower(Parts parts) : parts_(std::move(parts)), acknowledged_pause_(kAcknowledgedNs, kAcknowledgedSeldomNs) {
  const auto alone = [this](const std::function<Status()>& work) {
    Tree::Write tree = parts_.tree.write();
    tree_ = &tree;
    Status status = work();
    tree_ = nullptr;
    return status;
  };
  const auto applying = [this](uint32_t ordinal, const Batch& batch) {
    if (!catch_up_.is_behind()) tree_->keep_leased(ordinal, batch);  // while this process stood still the node may have given the bytes up
  };
  const auto applied = [this](uint32_t ordinal, const PeerBatch& batch) {
    tree_->follow(ordinal, batch);
    names_went_ |= std::ranges::any_of(batch.batch.records, [](const Record& record) {
      return std::holds_alternative<UnnameRecord>(record) || is_answered_statement(record);
    });
    parts_.lost_names.note_batch(ordinal, batch.batch);
    take_touches(batch.batch);
    look_for_new_life(ordinal, batch.after.epoch);
    answer(*tree_, ordinal);
  };
  const auto replaced = [this](uint32_t ordinal) {
    tree_->follow_all(ordinal);
    names_went_ = true;
    parts_.lost_names.note_all_anew(ordinal);
    look_for_new_life(ordinal, peers_->position_of(ordinal).epoch);
    answer(*tree_, ordinal);
  };
  peers_ = std::make_unique<Peers>(Peers::Parts{.volume = parts_.volume,
                                                .own = parts_.own,
                                                .clock = parts_.clock,
                                                .directory = parts_.directory,
                                                .view = parts_.tree.view(),
                                                .own_head = [this] { return own_head(); },
                                                .alone = alone,
                                                .applying = applying,
                                                .applied = applied,
                                                .replaced = replaced,
                                                .loaded = [this](const Batch& batch) { take_touches(batch); },
                                                .pinned = [this](uint32_t ordinal) {
                                                  tree_->end_leases();  // called once a second, for ACKS
                                                  return tree_->still_read(ordinal);
                                                },
                                                .settle = [this](bool refreshes) { settle(refreshes); },
                                                .own_statements = parts_.tree.statements(),
                                                .head_written = [this] { if (parts_.fence != nullptr) parts_.fence->heard_of(); },
                                                .requests = parts_.requests,
                                                .indexes_grow = [this](uint64_t growth_bytes) { return take_growth(growth_bytes); },
                                                .claim_user = parts_.claim_user});
}

Status PeerFollower::start() {
  has_thread_ = true;
  KVC_ASSIGN(thread_, start_thread("kvc-peers", [this] {
               while (!stopping_) {
                 const int64_t left_ns = round() - parts_.clock.monotonic_ns();
                 if (left_ns > 0 && !stopping_) wakeup_.wait_for(std::chrono::milliseconds(std::clamp<int64_t>(left_ns / 1'000'000, 1, 1000)));
               }
             }));
  if (parts_.claim_user == nullptr) return {};
  KVC_ASSIGN(claim_thread_, start_thread("kvc-claim", [this] { run_claim(); }));
  return {};
}

// Serves the claim, for which the other thread may be too busy, and what notices a standstill.
void PeerFollower::run_claim() {
  if (parts_.running != nullptr) parts_.running->set_ticked(true);
  constexpr uint32_t kCatchUpEvery = 4;
  for (uint32_t rounds = 0; !stopping_; rounds = catch_up_.is_behind() ? rounds + 1 : 0) {
    claim_wakeup_.wait_for(std::chrono::milliseconds(RunningClock::kTickNs / 1'000'000));
    if (parts_.running != nullptr) parts_.running->tick();
    // Until all others were read no evicted name is leased. While a read goes on each round lists everything, so there is one at a time, with pauses.
    if (catch_up_.is_behind() && rounds % kCatchUpEvery == 0 && !catches_up_.exchange(true)) catch_up_.read([this] { catches_up_ = false; });
    catch_up_.tick();
    const bool lost = parts_.fence != nullptr && parts_.fence->is_lost();
    if (stopping_ || lost) continue;
    if (parts_.running != nullptr) parts_.running->set_ticked(false);  // it reads and writes files: a slow server is no standstill
    peers_->step_claim_if_late();
    if (parts_.running != nullptr) parts_.running->set_ticked(true);
  }
  if (parts_.running != nullptr) parts_.running->set_ticked(false);
}

void PeerFollower::stop() {
  stopping_ = true;
  peers_->end_soon();
  wakeup_.wake();
  claim_wakeup_.wake();
  if (thread_.joinable()) thread_.join();
  if (claim_thread_.joinable()) claim_thread_.join();
  peers_->stop();
}

void PeerFollower::step() {
  if (parts_.clock.monotonic_ns() >= due_ns_) due_ns_ = round();
}

// Returns the time when the next round is due.
int64_t PeerFollower::round() {
  if (parts_.fence != nullptr && !parts_.fence->check_now_and_then() && parts_.fence->is_lost()) return parts_.clock.monotonic_ns() + Peers::kSecondNs;
  const int64_t due_ns = peers_->round();
  const bool has_peers = peers_->known() > 0;
  if (!has_peers_.exchange(has_peers) && has_peers && parts_.appeared) parts_.appeared();
  forget_answered();
  tell_touches();
  return std::min(due_ns, look_at_acknowledged());
}

// Does what follows from the applied batches. A refresh is answered after this, so a flush after it journals all of it.
void PeerFollower::settle(bool at_once) {
  for (const ObjectId id : std::exchange(used_elsewhere_, {})) parts_.accesses.used_elsewhere(id);
  for (const ObjectId id : std::exchange(suspected_, {})) parts_.suspected(id);
  answer_again();
  drop_left_directories();
  while (at_once && directories_left_ && !stopping_) drop_left_directories();
  if (at_once && parts_.tree.has_versions()) parts_.tree.write().sweep_versions(/*all=*/false);  // bindings journaled since the peers' were read
  close_what_went();
  parts_.lost_names.drop_due(parts_.tree);
  if (to_journal_.empty()) return;
  CommitRequest request;
  request.answers = std::exchange(to_journal_, {});
  parts_.commits.add(std::move(request));
}

// Returns the time when the next look is due.
int64_t PeerFollower::look_at_acknowledged() {
  if (!acknowledged_wanted_) return INT64_MAX;
  if (!acknowledged_pause_.may_try(parts_.clock.monotonic_ns())) return acknowledged_pause_.next_try_ns();
  const Acknowledged before = acknowledged(), now_known = read_acknowledged();
  const bool moved = !before || *before != *now_known;
  if (moved) acknowledged_pause_.succeeded();
  acknowledged_pause_.failed(parts_.clock.monotonic_ns());  // a pause in any case
  if (moved && parts_.acknowledged) parts_.acknowledged();
  return acknowledged_pause_.next_try_ns();
}

PeerFollower::Acknowledged PeerFollower::read_acknowledged() {
  const auto now_known = std::make_shared<const Peers::Acknowledged>(peers_->acknowledged_by_all(kSilentNs));
  std::lock_guard lock(mutex_);
  return acknowledged_ = now_known;
}

PeerFollower::Acknowledged PeerFollower::acknowledged() const {
  std::lock_guard lock(mutex_);
  return acknowledged_;
}

void PeerFollower::want_acknowledged(bool wanted) {
  if (acknowledged_wanted_.exchange(wanted) || !wanted) return;
  if (!has_thread_) due_ns_ = 0;
  wakeup_.wake();
}

// Only the other nodes can carry out this node's statements about their objects: once this node has left the volume, nothing repeats them.
FollowedByPeers PeerFollower::followed_to(JournalPosition position) {
  constexpr int64_t kSilentMs = 15'000;  // HEADs move each second
  FollowedByPeers followed;
  const Acknowledged known = read_acknowledged();
  if (known->position < position)
    followed.waits_for = fmt::format("{} ({})", known->by, known->reason.empty() ? "it has not read all of this node's journal" : known->reason);
  else if (!known->pinned.empty())
    followed.waits_for = fmt::format("clients of other nodes, which have {} removed files open", known->pinned.size());
  const Tree::Read tree = parts_.tree.read();
  for (const PeerStatus& peer : peers_->status()) {
    const Part* const part = tree.view().peer(peer.ordinal);
    if (part == nullptr || !part->statements || !parts_.tree.statements()->speaks_of(peer.node, part->statements->seen(parts_.own.node))) continue;
    if (peer.lag_ms >= kSilentMs)
      followed.left_behind.push_back(peer.node);
    else if (followed.waits_for.empty())
      followed.waits_for = fmt::format("{} (it has not answered all that was removed of it)", peer.node);
  }
  return followed;
}

void PeerFollower::want_room() {
  peers_->want_room();
  if (!has_thread_) due_ns_ = 0;
  claim_wanted_ = true;
  wakeup_.wake();
}

void PeerFollower::set_poll_every(int64_t every_ns) {
  peers_->set_poll_every(every_ns);
  wakeup_.wake();
}

void PeerFollower::refresh(StatusCompletion done) {
  peers_->refresh(std::move(done));
  if (!has_thread_) due_ns_ = 0;
  wakeup_.wake();
}

// --- answers ---

// A peer's statement about this node's objects takes effect here at once; the answer is journaled behind the names that went.
void PeerFollower::answer(Tree::Write& tree, uint32_t ordinal) {
  const Part* const peer = tree.view().peer(ordinal);
  if (peer == nullptr || !peer->index) return;
  auto answered = tree.answer(*peer, peers_->position_of(ordinal));
  if (!answered) return log::error("what node {} removed of this one stays for now: {}", peer->node, answered.error().message);
  std::ranges::move(answered->records, std::back_inserter(to_journal_));
  if (answered->waits) answered_ns_ = std::min(answered_ns_, parts_.clock.monotonic_ns() - kAnswerAgainNs + kAnswerWaitsNs);
}

void PeerFollower::answer_again() {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns - answered_ns_ < kAnswerAgainNs) return;
  answered_ns_ = now_ns;
  Tree::Write tree = parts_.tree.write();
  for (const PeerStatus& peer : peers_->status()) answer(tree, peer.ordinal);
}

// A removed file takes room as long as a descriptor of it is open here (on NFS 4, too). A reader of a file that its node still holds opens
// it again.
void PeerFollower::close_what_went() {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns - closed_ns_ < kCloseNs) return;
  closed_ns_ = now_ns;
  const bool few_descriptors = descriptor_limit() < kFewDescriptors;
  for (const PeerStatus& peer : peers_->status()) {
    const auto extents = peers_->extents_of(peer.ordinal);
    // The descriptors of all nodes together would be too many, with none left for indexes and journals.
    if (extents && few_descriptors) extents->give_up_descriptor();
    std::vector<ExtentId> ids = extents ? extents->cached_ids() : std::vector<ExtentId>();
    if (ids.empty()) continue;
    {
      const Tree::Read tree = parts_.tree.read();
      const Part* const part = tree.view().peer(peer.ordinal);
      if (part == nullptr || !part->index) continue;
      std::erase_if(ids, [&](ExtentId id) {
        const auto usage = part->index->find_extent(id);
        return !usage || (*usage && (*usage)->bodies > 0);
      });
    }
    for (const ExtentId id : ids) extents->close_cached(id);
  }
}

// In small pieces, because clients wait for the lock, and a look at a directory takes longer the more nodes there are.
void PeerFollower::drop_left_directories() {
  constexpr size_t kMost = 4096, kAtOnce = 64;
  bool names_went = std::exchange(names_went_, false);
  names_went |= parts_.tree.adopted_lost_names();
  directories_left_ |= names_went;
  for (size_t looked_at = 0; directories_left_ && looked_at < kMost && !stopping_; looked_at += kAtOnce)
    directories_left_ = !parts_.tree.write().drop_left_directories(kAtOnce, std::exchange(names_went, false));
}

// A node that has loaded a checkpoint without a statement must have read its answer: answers are kept for a minute after that.
void PeerFollower::forget_answered() {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns - forgot_ns_ < kForgetNs) return;
  forgot_ns_ = now_ns;
  std::map<std::string, JournalPosition> answered;
  {
    const Tree::Read tree = parts_.tree.read();
    for (const PeerStatus& status : peers_->status())
      if (const Part* const peer = tree.view().peer(status.ordinal); peer != nullptr && peer->statements)
        answered.emplace(status.node, peer->statements->seen(parts_.own.node));
  }
  for (const auto& [node, now] : answered)
    if (const auto before = answered_.find(node); before != answered_.end())
      if (Status forgot = parts_.tree.forget_statements(node, before->second); !forgot) log::warn("index: {}", forgot.error().message);
  answered_ = std::move(answered);
}

// --- what is used ---

// An object used only here would look unused to its node. Without room for records, or while none are taken, the message waits.
void PeerFollower::tell_touches() {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns - touched_ns_ < (touches_->failed ? kTouchAfterFailureNs : kTouchNs) || touches_->on_their_way || !parts_.has_room()) return;
  touched_ns_ = now_ns;
  for (const uint32_t ordinal : std::exchange(begun_anew_, {})) parts_.touches.tell_again(ordinal);
  CommitRequest request;
  for (const auto& [ordinal, ids] : parts_.touches.take()) {
    const std::optional<std::string> node = peers_->node_of(ordinal);
    if (!node) continue;  // that node left the volume
    const auto used_ns = static_cast<int64_t>(parts_.stamps.next().value);
    for (size_t i = 0; i < ids.size(); i += kTouchesOfRecord) {
      TouchRecord touches;
      for (size_t j = i; j < std::min(ids.size(), i + kTouchesOfRecord); ++j) touches.atimes_ns.emplace_back(id_there(ids[j]), used_ns);
      request.touches.push_back({*node, {}, std::move(touches)});
    }
  }
  if (touches_->failed) parts_.touches.put_back_damaged(damaged_told_);
  touches_->failed = false;
  damaged_told_ = parts_.touches.take_damaged();
  if (const uint64_t dropped = parts_.touches.take_dropped(); dropped > 0)
    log::warn("{} more objects of other nodes were found damaged here than their nodes can be told of", dropped);
  std::erase_if(damaged_told_, [&](const auto& of_node) {
    const std::optional<std::string> node = peers_->node_of(of_node.first);
    if (!node) return true;  // that node left the volume
    DamagedRecord damaged;
    for (const ObjectId id : of_node.second) damaged.ids.push_back(id_there(id));
    request.touches.push_back({*node, {}, std::move(damaged)});
    return false;
  });
  if (request.touches.empty()) return;
  touches_->on_their_way = true;
  request.done = [told = touches_](const Status& status) {
    told->failed = !status.has_value();
    told->on_their_way = false;
  };
  parts_.commits.add(std::move(request));
}

void PeerFollower::look_for_new_life(uint32_t ordinal, uint32_t epoch) {
  if (epoch == 0) return;
  const auto [known, is_new] = epochs_.try_emplace(ordinal, epoch);
  if (std::exchange(known->second, epoch) < epoch && !is_new) begun_anew_.push_back(ordinal);
}

// The use counts from now: clocks of nodes differ, and it was told within seconds. Not done while the Tree is locked: there may be many.
void PeerFollower::take_touches(const Batch& batch) {
  for (const Record& record : batch.records) {
    const auto* const said = std::get_if<StatementRecord>(&record);
    if (said == nullptr || said->node != parts_.own.node) continue;
    if (const auto* const touches = std::get_if<TouchRecord>(&said->what); touches != nullptr && used_elsewhere_.size() < kMostUsedElsewhere)
      for (const auto& [id, used_ns] : touches->atimes_ns) used_elsewhere_.push_back(id);
    if (const auto* const damaged = std::get_if<DamagedRecord>(&said->what); damaged != nullptr && suspected_.size() < kMostSuspected)
      suspected_.insert(suspected_.end(), damaged->ids.begin(), damaged->ids.end());
  }
}

// --- what others are told ---

Head PeerFollower::own_head() const {
  Head head = parts_.own_head();
  std::lock_guard lock(mutex_);
  head.checkpoint = checkpoint_;
  return head;
}

void PeerFollower::keep_indexes_within(uint64_t most_bytes) {
  if (parts_.directory.starts_with(parts_.volume->root() + "/")) peers_->keep_indexes_within(most_bytes);
}

uint64_t PeerFollower::bytes_on_volume() {
  if (peers_->known() > 0) had_peers_ = true;
  uint64_t bytes = 2 * (kHeadSlotBytes + (had_peers_ ? kAcksSlotBytes : 0));
  if (parts_.volume->features().network) return bytes;
  return bytes + allocated_below(parts_.directory);
}

void PeerFollower::measure() {
  parts_.own_records.set_peers(bytes_on_volume(), parts_.volume->features().network ? 0 : growth_bytes_.load(), kept_ahead_bytes() > 0);
}

// Without eviction, what others store between two rounds needs room kept for its index rows here: no node can give any up by then.
uint64_t PeerFollower::kept_ahead_bytes() const {
  constexpr uint64_t kMost = 16 * kMiB, kPart = 8;  // of the capacity, all nodes together
  const size_t known = peers_->known();
  if (known == 0 || parts_.volume->features().network || !parts_.index_room) return 0;
  const IndexRoom room = parts_.index_room(0);
  return room.evicts ? 0 : std::min(kMost, room.capacity_bytes / kPart / (known + 1));
}

// Their indexes grow, and are rebuilt, even if nothing is stored here: so they are measured each second.
IndexRoom PeerFollower::take_growth(uint64_t growth_bytes) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const uint64_t ahead_bytes = growth_bytes + kept_ahead_bytes();
  if (growth_bytes_.exchange(ahead_bytes) != ahead_bytes || now_ns - measured_ns_ >= kMeasureNs) {
    measured_ns_ = now_ns;
    measure();
  }
  if (parts_.volume->features().network || !parts_.index_room) return {};
  const IndexRoom room = parts_.index_room(ahead_bytes);
  if (room.claimed_bytes < ahead_bytes && now_ns - room_wanted_ns_ >= kRoomNs) {
    room_wanted_ns_ = now_ns;
    peers_->want_room();
  }
  return room;
}

void PeerFollower::note_checkpoint(HeadCheckpoint newest) {
  {
    std::lock_guard lock(mutex_);
    checkpoint_ = newest;
  }
  peers_->tell_soon();
  wakeup_.wake();
}

std::string PeerFollower::node_of(ObjectId id) const {
  if (!id.is_foreign()) return parts_.own.node;
  return peers_->node_of(id.node_ordinal()).value_or("(unknown)");
}

}  // namespace kvcachefs
