#include "store/upkeep/shared_capacity.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace kvcachefs {

namespace {
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kRatedNs = kSecondNs / 4;     // the least time over which the rate of writing is measured
constexpr int64_t kAgedNs = 2 * kSecondNs;      // how old the known ages may be
constexpr int64_t kShareNs = kSecondNs * 9 / 10;  // before that, the others have not read of the last evictions
constexpr int64_t kWaitedNs = 3 * kSecondNs;    // a wait this long ago still counts as a present one
constexpr int64_t kLookedNs = kSecondNs;        // until the claim was looked at for a call
constexpr int64_t kOthersPatienceNs = 2 * kSecondNs;  // until others have made room for a call
constexpr int64_t kLapsedPatienceNs = 10 * kSecondNs;  // until the claim can be renewed
constexpr int64_t kImpatientNs = 10 * kSecondNs;
}  // namespace

SharedCapacity::SharedCapacity(Parts parts) : parts_(std::move(parts)) {
  parts_.space.set_claim_clock(boottime_ns);
  parts_.space.set_claim_low_callback([this] { parts_.want_claim(); });
}

// --- the thread of the peers ---

OwnFigures SharedCapacity::figures(bool alone) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  OwnFigures own;
  own.grows = parts_.grows;
  own.capacity_bytes = parts_.grows ? parts_.options.current().capacity_bytes : 0;
  own.physical_bytes = parts_.space.physical_bytes();
  own.used_bytes = parts_.space.used_bytes();
  own.wanted_bytes = parts_.space.wanted_bytes();
  own.used_soon_bytes = parts_.space.used_soon_bytes();
  const uint64_t written = parts_.counters.write_received_bytes.load(std::memory_order_relaxed);
  if (const int64_t since_ns = now_ns - rated_ns_; since_ns >= kRatedNs) {
    const double rate = static_cast<double>(written - written_bytes_) / (static_cast<double>(since_ns) / kSecondNs);
    written_per_s_ = rated_ns_ == 0 ? 0 : (written_per_s_ + static_cast<uint64_t>(rate)) / 2;
    rated_ns_ = now_ns;
    written_bytes_ = written;
  }
  // A node that tells nothing evictable is not waited for: if there was nothing at the last look, what was stored since is told at once.
  const bool told_nothing = std::ranges::all_of(by_age_, [](uint64_t bytes) { return bytes == 0; });
  if (!alone && (told_nothing || now_ns - aged_ns_ >= kAgedNs)) {
    aged_ns_ = now_ns;
    by_age_ = parts_.evictor.bytes_by_age();
  }
  own.written_per_s = written_per_s_;
  own.evicts = parts_.evictor.may_evict();
  own.waits = parts_.waiters.count() > 0 || now_ns - wanted_ns_ < kWaitedNs;
  const uint64_t lacking_bytes = parts_.space.take_lacking_bytes();
  // Without waiters: only what the calls lacked that were refused since the last look.
  lacking_bytes_ = parts_.waiters.count() > 0 ? std::max(lacking_bytes_, lacking_bytes) : lacking_bytes;
  // The next try shows whether that was enough. Where this node evicts, space comes back all the time, which proves nothing.
  const uint64_t reclaimed = parts_.counters.reclaimed_bytes.load(std::memory_order_relaxed);
  const bool raised = raises_ != lacking_at_raise_, none_tried = lacking_bytes == 0 && parts_.waiters.count() > 0;
  if (raised && none_tried && own.evicts)  // if they lacked nothing, the plan would give others what was raised for them
    lacking_bytes_ = std::max(less_bytes(lacking_bytes_, raised_bytes_), std::min<uint64_t>(lacking_bytes_, 1));
  else if (raised || (reclaimed != lacking_at_reclaimed_ && !own.evicts))
    lacking_bytes_ = lacking_bytes;
  lacking_at_raise_ = raises_;
  raised_bytes_ = 0;
  lacking_at_reclaimed_ = reclaimed;
  own.lacking_bytes = own.waits ? lacking_bytes_ : 0;
  if (!alone) own.evictable_by_age = by_age_;
  return own;
}

void SharedCapacity::raise_claim(uint64_t bytes) {
  const uint64_t more_bytes = less_bytes(bytes, parts_.space.claim_bytes());
  parts_.space.set_claim(bytes);
  raised_bytes_ += more_bytes;
  ClaimPlan plan;
  {
    std::lock_guard lock(mutex_);
    plan_.unclaimed_bytes = less_bytes(plan_.unclaimed_bytes, more_bytes);
    plan = plan_;
  }
  parts_.space.set_shared(plan.unclaimed_bytes, plan.capacity_bytes, is_shared() ? 0 : plan.claimable_bytes);
  impatient_ns_ = INT64_MIN / 2;
  parts_.space.hope();
  raises_.fetch_add(1);
  if (awaited_ || parts_.waiters.count() > 0) parts_.make_room();
}

void SharedCapacity::hold_until(int64_t boot_ns) {
  const bool had_lapsed = parts_.space.claim_has_lapsed();
  parts_.space.hold_claim_until(boot_ns);
  if (!had_lapsed || parts_.space.claim_has_lapsed()) return;
  impatient_ns_ = INT64_MIN / 2;
  parts_.space.hope();
}

void SharedCapacity::follow(const ClaimPlan& plan, bool alone) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  bool share = false;
  {
    std::lock_guard lock(mutex_);
    plan_ = plan;
    if (alone) share_bytes_ = 0;
    if (!alone && now_ns - share_ns_ >= kShareNs) {
      share_ns_ = now_ns;
      share_bytes_ = plan.evict_bytes;
      share = share_bytes_ > 0;
    }
  }
  shared_ = !alone;
  parts_.space.set_shared(plan.unclaimed_bytes, plan.capacity_bytes, alone ? plan.claimable_bytes : 0);
  // If there is nothing to claim, the next second is soon enough.
  parts_.space.tell_claim_below(plan.unclaimed_bytes == 0 ? 0 : plan.low_bytes);
  steps_.fetch_add(1);
  if (share || awaited_) parts_.make_room();
}

// --- any thread ---

// A node that is alone and has not claimed everything waits only for its volume. Where nothing can be evicted it also claims the newcomers'
// part.
bool SharedCapacity::claims_more() const {
  if (parts_.space.claim_has_lapsed()) return true;
  if (parts_.space.room_bytes() >= parts_.space.free_bytes()) return false;  // it is the file system that is full
  const ClaimPlan plan = this->plan();
  return !is_shared() && parts_.space.claim_bytes() < (parts_.evictor.may_evict() ? plan.claimable_bytes : plan.capacity_bytes);
}

bool SharedCapacity::is_impatient() const { return parts_.running.monotonic_ns() - impatient_ns_ < kImpatientNs; }

bool SharedCapacity::may_get_room() const {
  if (!parts_.grows || is_impatient()) return false;
  if (!is_shared() || parts_.space.claim_has_lapsed()) return claims_more();
  std::lock_guard lock(mutex_);
  return plan_.others_make_room || plan_.unclaimed_bytes >= claim_grain(plan_.capacity_bytes) / 4;
}

ClaimPlan SharedCapacity::plan() const {
  std::lock_guard lock(mutex_);
  return plan_;
}

IndexRoom SharedCapacity::index_room(uint64_t growth_bytes) const {
  const ClaimPlan plan = this->plan();
  // A mount that stores nothing claims no more than it uses.
  const uint64_t claimed_bytes = parts_.grows ? less_bytes(parts_.space.claim_bytes(), parts_.space.used_bytes()) : UINT64_MAX;
  return {.claimed_bytes = std::min(growth_bytes, claimed_bytes),
          .capacity_bytes = plan.capacity_bytes == 0 ? UINT64_MAX : plan.capacity_bytes,
          .is_short = plan.is_short,
          .may_get_more = may_get_room(),
          .evicts = parts_.evictor.on(),
          // A lack here is not reported like a call's: nothing is to be evicted for it.
          .reserve = [&space = parts_.space](uint64_t bytes) { return space.room_bytes() >= bytes && space.try_reserve(bytes); },
          .release = [&space = parts_.space](uint64_t bytes) { space.release(bytes); }};
}

// --- the keeper's thread ---

uint64_t SharedCapacity::take_share() {
  std::lock_guard lock(mutex_);
  return std::exchange(share_bytes_, 0);
}

void SharedCapacity::stop_waiting() {
  waiting_.reset();
  awaited_ = false;
}

void SharedCapacity::lose_patience() {
  stop_waiting();
  impatient_ns_ = parts_.running.monotonic_ns();
}

SharedCapacity::Room SharedCapacity::look_for_room(bool goes_on) {
  if (!goes_on) waiting_.reset();
  const int64_t now_ns = parts_.running.monotonic_ns();
  const auto end_with = [this](Room room) {
    stop_waiting();
    return room;
  };
  if (waiting_ && raises_ != waiting_->raises) return end_with(Room::kClaimed);
  if (!is_shared() && !claims_more()) return end_with(Room::kOwn);
  if (!waiting_) {
    waiting_ = Waiting{now_ns, raises_, steps_};
    wanted_ns_ = parts_.clock.monotonic_ns();
    awaited_ = true;
    parts_.want_claim();
    return Room::kAwaited;
  }
  const int64_t waited_ns = now_ns - waiting_->since_ns;
  if (parts_.space.claim_has_lapsed()) {
    if (waited_ns < kLapsedPatienceNs && !is_impatient()) return Room::kAwaited;
    lose_patience();
    return Room::kNone;
  }
  if (steps_ == waiting_->steps && waited_ns < kLookedNs) return Room::kAwaited;
  if (!is_shared()) return end_with(Room::kOwn);  // the claim was looked at; nothing more can come
  const ClaimPlan plan = this->plan();
  // The plan is set before the claim is raised to it, because the others have to be asked: milliseconds.
  const bool is_being_raised = plan.target_bytes > parts_.space.claim_bytes();
  // Either this node has some of the oldest chunks itself, or no other node has anything to give.
  if (plan.evict_bytes > 0 || !(may_get_room() || is_being_raised) || waited_ns >= kOthersPatienceNs) return end_with(Room::kOwn);
  return Room::kAwaited;
}

}  // namespace kvcachefs
