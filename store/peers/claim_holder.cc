#include "store/peers/claim_holder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/journal/file_header.h"
#include "store/peers/slot_reader.h"

namespace kvcachefs {

namespace {

constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kWatchedNs = 15'000 * kMsNs;    // after so long without a sign of life nothing is expected of a node
constexpr int64_t kMeasuredNs = 60'000 * kMsNs;   // what a node has that never told of it: so long that counts
constexpr int64_t kForgottenNs = 10'000 * kMsNs;  // the list of nodes that step() is given may be older than the last one here
constexpr int64_t kStepPauseNs = 50 * kMsNs;           // between two steps, however much is wished
constexpr int64_t kLeastPauseMs = 50, kMostPauseMs = 500;

using Life = PeerFigures::Life;

uint64_t all_taken_bytes(std::span<const PeerFigures> peers) {
  uint64_t taken = 0;
  for (const PeerFigures& peer : peers) taken = add_bytes(taken, peer.taken_bytes());
  return taken;
}

uint64_t least_claimable_bytes(const OwnFigures& own, std::span<const PeerFigures> peers) {
  return plan_claim(own, 0, peers).claimable_bytes;
}

Result<uint64_t> allocated_below(Volume& volume, const std::string& directory) {
  auto entries = volume.list(directory);
  if (!entries && entries.error().code == Code::kNotFound) return 0;  // it went meanwhile, as files may
  KVC_TRY(entries);
  uint64_t bytes = 0;
  for (const DirectoryEntry& entry : *entries) {
    const std::string path = directory + "/" + entry.name;
    if (entry.is_directory) {
      KVC_ASSIGN(const uint64_t below, allocated_below(volume, path));
      bytes += below;
      continue;
    }
    const auto info = volume.info(path);
    if (!info && info.error().code != Code::kNotFound) return std::unexpected(info.error());
    if (info) bytes += info->allocated_bytes;
  }
  return bytes;
}

}  // namespace

ClaimHolder::ClaimHolder(Parts parts)
    : parts_(std::move(parts)), random_(static_cast<uint32_t>(parts_.clock.realtime_ns() ^ (parts_.clock.monotonic_ns() << 7)) | 1u) {}

// --- what the others hold ---

void ClaimHolder::note(Known& known, const Head& head) const {
  known.epoch = head.identity.epoch;
  known.counter = head.counter;
  known.measured_ns.reset();
  known.figures.capacity_bytes = head.capacity_bytes;
  known.figures.physical_bytes = head.physical_bytes;
  known.figures.claim_bytes = head.claim_bytes;
  known.figures.wish_bytes = head.wish_bytes;
  known.figures.evictable_by_age = head.bytes_by_age;
}

void ClaimHolder::take_in(const std::map<std::string, Discovery::Node>& nodes) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  std::erase_if(known_, [&](const auto& each) { return !nodes.contains(each.first) && now_ns - each.second.found_ns >= kForgottenNs; });
  for (const auto& [name, node] : nodes) {
    const auto [at, is_new] = known_.try_emplace(name);
    Known& known = at->second;
    if (is_new) known.found_ns = now_ns;
    if (node.head && std::pair(node.head->identity.epoch, node.head->counter) > std::pair(known.epoch, known.counter)) note(known, *node.head);
    const bool was_seen_lately = now_ns - std::max(known.found_ns, node.moved_ns.value_or(known.found_ns)) < kWatchedNs;
    switch (node.presence) {
      case Discovery::Presence::kLive: known.figures.life = Life::kLives; break;
      case Discovery::Presence::kSilent: known.figures.life = was_seen_lately ? Life::kMayLive : Life::kSilent; break;
      case Discovery::Presence::kAbsent: known.figures.life = Life::kAbsent; break;
    }
  }
}

// All nodes that there are now, as they are now.
Status ClaimHolder::read_all() {
  slowest_ns_ = 0;
  int64_t begun_ns = parts_.clock.monotonic_ns();
  const auto note_time = [&] {
    const int64_t now_ns = parts_.clock.monotonic_ns();
    slowest_ns_ = std::max(slowest_ns_, now_ns - std::exchange(begun_ns, now_ns));
  };
  KVC_ASSIGN(const auto names, list_other_nodes(parts_.volume, parts_.own));
  std::erase_if(known_, [&names](const auto& each) { return !names.contains(each.first); });
  for (const std::string& name : names) {
    note_time();
    const auto [at, is_new] = known_.try_emplace(name);
    if (is_new) {
      at->second.found_ns = parts_.clock.monotonic_ns();
      at->second.figures.life = Life::kMayLive;
    }
    KVC_ASSIGN(const bool told, read(name, at->second));
    if (!told) KVC_TRY(measure(name, at->second));
  }
  note_time();
  return {};
}

// The HEAD of its last life that has one: while a daemon starts, that of the one before holds. False: there is none.
Result<bool> ClaimHolder::read(const std::string& name, Known& known) {
  KVC_ASSIGN(const auto epochs, list_epochs(parts_.volume, name));
  for (size_t at = epochs.size(); at-- > 0;) {
    KVC_ASSIGN(const bool has_one, read_epoch(name, epochs[at], known));
    if (has_one) return true;
  }
  return false;
}

// One that was cut short while it was made is none.
Result<bool> ClaimHolder::read_epoch(const std::string& name, uint32_t epoch, Known& known) {
  FileIdentity identity = parts_.own;
  identity.node = name;
  identity.epoch = epoch;
  FilePtr head = known.head_epoch == epoch ? std::exchange(known.head, nullptr) : nullptr;
  if (!head) {
    KVC_ASSIGN(head, open_slots(parts_.volume, identity, kHeadFileName));
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

Status ClaimHolder::measure(const std::string& name, Known& known) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (known.measured_ns && now_ns - *known.measured_ns < kMeasuredNs) return {};
  KVC_ASSIGN(const uint64_t bytes, allocated_below(parts_.volume, "nodes/" + name));
  const Life life = known.figures.life;
  known.figures = {};
  known.figures.life = life;
  known.figures.physical_bytes = known.figures.claim_bytes = bytes;
  known.measured_ns = now_ns;
  return {};
}

std::vector<PeerFigures> ClaimHolder::peers() const {
  std::vector<PeerFigures> all;
  for (const auto& [name, known] : known_) all.push_back(known.figures);
  return all;
}

// --- what this node holds ---

Status ClaimHolder::tell(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes) {
  told_ns_ = parts_.clock.monotonic_ns();
  KVC_TRY(parts_.tell(own, claim_bytes, wish_bytes));
  told_capacity_bytes_ = own.capacity_bytes;
  return {};
}

// What the HEAD of the last life claims it may have told only to look whether it fits: that it used is certain, and nothing else.
Status ClaimHolder::begin() {
  begun_ = true;
  const Status all_read = read_all();
  const OwnFigures own = parts_.user.figures(/*alone=*/false);
  if (all_read && known_.empty()) {
    Status alone = step_alone(own);
    if (!alone) claim_bytes_ = parts_.user.lower_claim(0);
    return alone;
  }
  claim_bytes_ = parts_.user.lower_claim(0);
  const std::vector<PeerFigures> others = peers();
  const ClaimPlan plan = plan_claim(own, claim_bytes_, others);
  parts_.user.follow(plan, /*alone=*/false);
  KVC_TRY(tell(own, claim_bytes_, plan.wish_bytes));
  KVC_TRY(all_read);
  return plan.target_bytes > claim_bytes_ ? raise(own, plan, plan.target_bytes) : Status();
}

// It was told that this is the whole volume before nobody else was found.
Status ClaimHolder::step_alone(const OwnFigures& own) {
  if (claim_bytes_ != kWholeVolume || !told_ns_) {
    ClaimPlan plan;
    plan.capacity_bytes = plan.claimable_bytes = plan.wish_bytes = plan.unclaimed_bytes = own.capacity_bytes;
    plan.others_make_room = true;
    const Status raised = raise(own, plan, kWholeVolume);
    tries_again_ = claim_bytes_ != kWholeVolume;
    // Until the volume answers well: calls wait for that, and nothing is evicted for it.
    parts_.user.follow(tries_again_ ? plan : ClaimPlan(), /*alone=*/!tries_again_);
    return raised;
  }
  // On another machine it may be asked whether this node lives.
  const bool due = parts_.volume.features().network && parts_.clock.monotonic_ns() - *told_ns_ >= kSecondNs;
  return own.capacity_bytes == told_capacity_bytes_ && !due ? Status() : tell(own, claim_bytes_, own.capacity_bytes);
}

Status ClaimHolder::raise(const OwnFigures& own, const ClaimPlan& plan, uint64_t target_bytes) {
  KVC_TRY(tell(own, target_bytes, plan.wish_bytes));
  const Status all_read = read_all();
  const std::vector<PeerFigures> others = peers();
  const bool fits = target_bytes == kWholeVolume ? others.empty() : add_bytes(all_taken_bytes(others), target_bytes) <= least_claimable_bytes(own, others);
  if (all_read && fits && slowest_ns_ <= parts_.slow_ns) {
    claim_bytes_ = target_bytes;
    parts_.user.raise_claim(target_bytes);
    return {};
  }
  try_again_ns_ = parts_.clock.monotonic_ns() + std::uniform_int_distribution<int64_t>(kLeastPauseMs, kMostPauseMs)(random_) * kMsNs;
  if (claim_bytes_ == 0) claim_bytes_ = parts_.user.lower_claim(0);
  const Status taken_back = tell(own, claim_bytes_, plan.wish_bytes);
  return all_read ? taken_back : all_read;
}

Status ClaimHolder::step(const std::map<std::string, Discovery::Node>& nodes, bool tell_now) {
  if (!begun_) return begin();
  const int64_t now_ns = parts_.clock.monotonic_ns();
  stepped_ns_ = now_ns;
  take_in(nodes);
  const OwnFigures own = parts_.user.figures(known_.empty());
  if (known_.empty()) return now_ns >= try_again_ns_ ? step_alone(own) : Status();
  const std::vector<PeerFigures> others = peers();
  const ClaimPlan plan = plan_claim(own, claim_bytes_, others);
  const uint64_t before = claim_bytes_;
  if (plan.target_bytes < claim_bytes_ || own.used_bytes > claim_bytes_)
    claim_bytes_ = parts_.user.lower_claim(std::min(plan.target_bytes, claim_bytes_));
  parts_.user.follow(plan, /*alone=*/false);
  tries_again_ = plan.target_bytes > claim_bytes_;
  if (tries_again_ && now_ns >= try_again_ns_) return raise(own, plan, plan.target_bytes);
  const bool due = tell_now || !told_ns_ || now_ns - *told_ns_ >= kSecondNs;
  return due || claim_bytes_ != before ? tell(own, claim_bytes_, plan.wish_bytes) : Status();
}

int64_t ClaimHolder::due_ns(bool wants_room) const {
  if (!wants_room && !(tries_again_ && stepped_ns_ && *stepped_ns_ < try_again_ns_)) return INT64_MAX;
  return std::max(try_again_ns_, stepped_ns_ ? *stepped_ns_ + kStepPauseNs : INT64_MIN);
}

Status ClaimHolder::end() {
  if (!begun_) return {};
  const OwnFigures own = parts_.user.figures(/*alone=*/true);
  claim_bytes_ = parts_.user.lower_claim(0);
  return tell(own, claim_bytes_, claim_bytes_);
}

}  // namespace kvcachefs
