#include "store/peers/claim_holder.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvcachefs {

namespace {

constexpr int64_t kStepPauseNs = 10'000'000;  // between two steps beside other nodes, however much is wished
constexpr int64_t kLookPauseNs = 100'000'000;  // the same while a call waits and others have to give something up
constexpr int64_t kSeldomToldNs = 1'500'000'000;  // at every second step, so every 2 s: shorter than a taker-over watches HEAD, and than a HEAD may stand
constexpr uint64_t kPlentyPart = 8;  // of the capacity
constexpr int64_t kLeastPauseNs = 50'000'000, kMostPauseNs = 500'000'000;

uint64_t all_taken_bytes(std::span<const PeerFigures> peers) {
  uint64_t taken = 0;
  for (const PeerFigures& peer : peers) taken = add_bytes(taken, peer.taken_bytes());
  return taken;
}

}  // namespace

ClaimHolder::ClaimHolder(Parts parts)
    : parts_(std::move(parts)),
      peers_(parts_.volume, parts_.own, parts_.clock),
      random_(static_cast<uint32_t>(parts_.clock.realtime_ns() ^ (parts_.clock.monotonic_ns() << 7)) | 1u) {}

// On a local volume this node's lock tells the others whether it runs, so the claim does not lapse.
bool ClaimHolder::has_lapsed(int64_t boot_ns) const {
  return parts_.volume.features().network && told_boot_ns_ && boot_ns - *told_boot_ns_ > kLeaseNs;
}

Status ClaimHolder::tell(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes) {
  told_ns_ = parts_.clock.monotonic_ns();
  const int64_t boot_ns = parts_.boot_ns();
  // This process may have been away at any moment, also just before: a lapsed claim must not be told as if it were still good.
  if (has_lapsed(boot_ns)) {
    const bool raises = claim_bytes > claim_bytes_;
    claim_bytes_ = parts_.user.lower_claim(0);
    if (!raises) claim_bytes = claim_bytes_;
  }
  KVC_TRY(parts_.tell(own, claim_bytes, wish_bytes));
  told_boot_ns_ = boot_ns;
  told_capacity_bytes_ = own.capacity_bytes;
  if (parts_.volume.features().network) parts_.user.hold_until(boot_ns + kLeaseNs);
  return {};
}

// The plan comes after the claim was lowered, for it depends on the claim; figures that are older by then do no harm. The claim goes to what is used at that
// moment, not to what the figures say, so nothing that is used is offered to other nodes. No client is there yet, so no call is refused before the plan tells
// whether there is more to claim.
Status ClaimHolder::begin() {
  begun_ = true;
  const Status all_read = peers_.read_all();
  const bool alone = all_read && peers_.empty();
  const OwnFigures own = parts_.user.figures(alone);
  claim_bytes_ = parts_.user.lower_claim(0);
  const std::vector<PeerFigures> others = peers_.figures();
  const ClaimPlan plan = plan_claim(own, claim_bytes_, others);
  parts_.user.follow(plan, alone);
  KVC_TRY(tell(own, claim_bytes_, plan.wish_bytes));
  KVC_TRY(all_read);
  tries_again_ = plan.target_bytes > claim_bytes_;
  return tries_again_ ? raise(own, plan) : Status();
}

// With no other node there is nobody to wait for, and a slow answer cannot be an old one.
Status ClaimHolder::raise(const OwnFigures& own, const ClaimPlan& plan) {
  KVC_TRY(tell(own, plan.target_bytes, plan.wish_bytes));
  const Status all_read = peers_.read_all();
  const std::vector<PeerFigures> others = peers_.figures();
  const uint64_t claimable = others.empty() ? own.capacity_bytes : plan_claim(own, claim_bytes_, others).claimable_bytes;
  const bool fits = add_bytes(all_taken_bytes(others), plan.target_bytes) <= claimable;
  const bool in_time = others.empty() || peers_.slowest_ns() <= parts_.slow_ns;
  if (all_read && fits && in_time && !has_lapsed(parts_.boot_ns())) {
    claim_bytes_ = plan.target_bytes;
    parts_.user.raise_claim(claim_bytes_);
    return {};
  }
  try_again_ns_ = parts_.clock.monotonic_ns() + std::uniform_int_distribution<int64_t>(kLeastPauseNs, kMostPauseNs)(random_);
  const Status taken_back = tell(own, claim_bytes_, plan.wish_bytes);
  return all_read ? taken_back : all_read;
}

Status ClaimHolder::step(const std::map<std::string, Discovery::Node>& nodes, bool tell_now, bool is_quiet) {
  if (!begun_) return begin();
  peers_.take_in(nodes);
  return step(tell_now, is_quiet);
}

Status ClaimHolder::step_unseen() {
  if (!begun_) return {};
  waits_ = true;
  return step(/*tell_now=*/true, /*is_quiet=*/false);
}

Status ClaimHolder::step(bool tell_now, bool is_quiet) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const uint64_t before = claim_bytes_;
  stepped_ns_ = now_ns;
  // A call waits: looks now, not in a second, for what others gave up. read_all() notes itself what cannot be read.
  if (waits_) static_cast<void>(peers_.read_all());
  const bool alone = peers_.empty();
  // Others may have taken what this node did not use: it is claimed anew.
  if (has_lapsed(parts_.boot_ns())) claim_bytes_ = parts_.user.lower_claim(0);
  const OwnFigures own = parts_.user.figures(alone);
  const std::vector<PeerFigures> others = peers_.figures();
  ClaimPlan plan = plan_claim(own, claim_bytes_, others);
  if (plan.target_bytes < claim_bytes_ || own.used_bytes > claim_bytes_) {
    const uint64_t held = claim_bytes_;
    claim_bytes_ = parts_.user.lower_claim(std::min(plan.target_bytes, claim_bytes_));
    if (plan.unclaimed_bytes > 0) plan.unclaimed_bytes = add_bytes(plan.unclaimed_bytes, less_bytes(held, claim_bytes_));
  }
  parts_.user.sink_claim(std::min(plan.target_bytes, claim_bytes_));
  parts_.user.follow(plan, alone);
  tries_again_ = plan.target_bytes > claim_bytes_;
  waits_ = own.waits && !alone && plan.wish_bytes > claim_bytes_;
  has_plenty_ = !plan.is_short && !plan.others_lack && plan.unclaimed_bytes >= plan.capacity_bytes / kPlentyPart;
  if (tries_again_ && now_ns >= try_again_ns_) return raise(own, plan);
  // On a network volume another machine may ask whether this node lives; on a local one its lock tells.
  const bool tells = !alone || parts_.volume.features().network;
  const bool seldom = alone || (is_quiet && has_plenty_ && parts_.volume.features().network);
  const bool due = (tells && (tell_now || !told_ns_ || now_ns - *told_ns_ >= (seldom ? kSeldomToldNs : kSecondNs))) || !told_boot_ns_;
  return due || claim_bytes_ != before || own.capacity_bytes != told_capacity_bytes_ ? tell(own, claim_bytes_, plan.wish_bytes) : Status();
}

int64_t ClaimHolder::due_ns(bool wants_room) const {
  const int64_t waits_ns = waits_ && stepped_ns_ ? std::max(*stepped_ns_ + kLookPauseNs, try_again_ns_) : INT64_MAX;
  if (!wants_room && !(tries_again_ && stepped_ns_ && *stepped_ns_ < try_again_ns_)) return waits_ns;
  return std::max(try_again_ns_, stepped_ns_ && !peers_.empty() ? *stepped_ns_ + kStepPauseNs : 0);
}

Status ClaimHolder::end() {
  if (!begun_) return {};
  const OwnFigures own = parts_.user.figures(/*alone=*/true);
  claim_bytes_ = parts_.user.lower_claim(0);
  return tell(own, claim_bytes_, claim_bytes_);
}

}  // namespace kvcachefs
