#include "store/upkeep/keeper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "store/base/log.h"
#include "store/base/thread.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {
constexpr int64_t kIndexIntervalNs = 5'000'000'000;    // the index follows at least this often ...
constexpr uint64_t kIndexRows = 20'000;                // ... or when this many rows wait: LMDB keeps the memory of the largest commit
constexpr uint64_t kIndexGrowthBytes = 64 * kMiB;      // ... or the file will grow so much (extended attributes, targets of symlinks)
constexpr uint64_t kFewRows = 128;                     // fewer are not worth that estimate
constexpr int64_t kPatienceNs = 10'000'000'000;        // with nodes that keep space back which a call waits for
constexpr int64_t kPatienceForOthersNs = 4'000'000'000;  // ... where it is a call of another node, which may have waited three seconds for leases before
constexpr int64_t kReclaimNs = 1'000'000'000;          // per reclaim: data written since has to be synced as well
constexpr int64_t kWaitedReclaimNs = 100'000'000;      // ... while calls wait for the result
constexpr int64_t kLetGoNs = 1'000'000'000;            // between releases of memory mapped by index reads
constexpr uint64_t kReclaimBytes = 64 * kMiB;          // dead bytes that are worth a sync of their own
}  // namespace

// --- its thread ---

Status Keeper::start() {
  KVC_ASSIGN(thread_, start_thread("kvc-keeper", [this] { run(); }));
  return {};
}

void Keeper::run() {
  while (true) {
    parts_.wakeup.wait_for(std::chrono::seconds(1));  // a call that asks during the step below gets another step
    if (stopping_) return;
    if (let_go_wanted_.exchange(false)) parts_.index.let_go_of_mapped();
    step(false);
    parts_.cache.trim();
    if (const int64_t now_ns = parts_.clock.monotonic_ns(); now_ns - let_go_ns_ >= kLetGoNs) {
      parts_.index.let_go_of_mapped();
      let_go_ns_ = now_ns;
    }
    if (parts_.warmer.is_due()) parts_.warmer.kick();
  }
}

void Keeper::want_let_go() {
  let_go_wanted_ = true;
  parts_.wakeup.wake();
}

void Keeper::ask_to_stop() {
  stopping_ = true;
  parts_.wakeup.wake();
}

void Keeper::stop() {
  if (!thread_.joinable()) return;
  ask_to_stop();
  thread_.join();
}

// --- what it does ---

bool Keeper::step(bool force) {
  parts_.probes.sample(parts_.clock.monotonic_ns());
  if (parts_.space_waiters.count() == 0) held_.restart_time();
  const bool made_room = make_room();
  const int64_t begun_ns = parts_.clock.monotonic_ns();
  const bool evicted = parts_.eviction.evict_ahead();
  const bool compacted = compact();
  hold_for_others();
  bool due = force || evicted || compacted || parts_.checkpointer.judged_tail() || (parts_.sweep.is_due() && !parts_.checkpointer.holds_earlier_lives()) ||
             parts_.checkpointer.reclaim_was_cut_short();
  const bool reclaim_wanted = reclaim_wanted_.exchange(false);
  const bool dead = parts_.dead.any();  // also raw files, whose records have no length
  const int64_t now = parts_.clock.monotonic_ns();
  const bool tidies = parts_.eviction.is_quiet();
  const uint64_t left = tidies ? 0 : parts_.eviction.left_bytes();
  const bool dead_worth_it = parts_.dead.bytes() > kReclaimBytes + left + parts_.checkpointer.held_for_peers_bytes();
  due |= tidies && parts_.eviction.left_bytes() > 0;
  due |= reclaim_wanted && dead;
  const bool ran = parts_.work.run(), filled = parts_.eviction.go_on_filling();
  const bool worked = ran || filled;
  parts_.checkpointer.sync_if_asked();
  due |= mend_index();  // work that failed meanwhile can succeed now
  if (parts_.tree.has_versions()) parts_.tree.write().sweep_versions(/*all=*/false);
  end_lingering();
  for (auto& then : parts_.read_ahead.kernel().take_stalled()) parts_.resumer.answer_later(std::move(then));
  parts_.files.settle();
  parts_.cache.keep_to_limit();
  parts_.record_waiters.resume();
  parts_.checkpointer.remove_kept_journals(/*room_is_wanted=*/parts_.space_waiters.count() > 0);
  log::tell_repeated();
  const uint64_t rows = parts_.index.overlay_rows();
  if (now - verified_again_ns_ > kIndexIntervalNs) {
    verified_again_ns_ = now;
    parts_.unverified.look_again(parts_.sealer.memory_to_seal(nullptr));
    parts_.watch.refill_reserve();
  }
  const bool waiting = rows > 0 || parts_.commits.unsynced_bytes() > 0;
  // Space of objects that were open when they were removed may be given back now.
  const uint64_t hopes = parts_.space.hopes();
  const bool let_go = dead && hopes != hopes_at_index_point_;
  journal_read_times(now);
  due |= parts_.record_waiters.want_upkeep() || (parts_.checkpointer.wants_checkpoint() && parts_.backoff.may_try(now));
  due |= dead_worth_it || rows > kIndexRows || ((waiting || let_go) && now - last_index_point_ns_ > kIndexIntervalNs);
  due = due || (rows > kFewRows && parts_.index.growth_bytes() > kIndexGrowthBytes);
  const bool swept = sweep_packs();
  if (!due) {
    const bool shrunk = parts_.checkpointer.shrink_index();
    parts_.watch.measure_when_due(now);
    return made_room || worked || swept || shrunk;
  }
  last_index_point_ns_ = now;
  hopes_at_index_point_ = hopes;
  Reclaimer::Amount amount{.most_ns = kReclaimNs};
  if (!tidies && !force) amount.enough_bytes = parts_.eviction.bytes_to_punch_ahead();
  const uint64_t reclaimed = parts_.counters.reclaimed_bytes;
  note_upkeep(parts_.checkpointer.index_point(amount), now);
  parts_.checkpointer.shrink_index();
  parts_.watch.measure_all();
  if (parts_.shared != nullptr) parts_.shared->gave_back();
  if (parts_.counters.reclaimed_bytes != reclaimed) held_.restart_time();
  if (evicted) {
    parts_.eviction.note_round(begun_ns);
    // Calls that began to wait meanwhile need not wait for a round of their own.
    auto round = parts_.space_waiters.begin_round();
    if (!round && held_.is_held() && parts_.counters.reclaimed_bytes != reclaimed) round = held_.round();
    if (round) {
      if (parts_.shared != nullptr) parts_.shared->stop_waiting();
      end_round(*round, /*gave_back=*/true);
    }
  }
  return true;
}

// On return the moved bodies are journaled; the index point that is then due gives their old space back.
bool Keeper::compact() {
  if (parts_.compactor == nullptr || stopping_) return false;
  const bool any = parts_.compactor->step(parts_.eviction.room_wanted(/*pressure=*/0), /*waited_for=*/false);
  if (any) parts_.drainer.drain(/*for_room=*/true);
  if (parts_.compactor->goes_on()) parts_.wakeup.wake();
  return any;
}

// Skipped without room, where these records would use up the reserve for more important ones.
void Keeper::journal_read_times(int64_t now_ns) {
  if (!parts_.commits.idle() || parts_.space.room_bytes() == 0) return;  // the commit under way takes them along
  if (parts_.read_times.claim_commit(now_ns)) parts_.commits.add({});
}

// Logs a persistent failure, which may recur each second, only now and then.
void Keeper::note_upkeep(const Status& status, int64_t now_ns) {
  constexpr int64_t kTellAgainNs = 60'000'000'000;
  parts_.health.report(Health::Of::kUpkeep, status);
  status ? parts_.backoff.succeeded() : parts_.backoff.failed(now_ns);
  parts_.record_waiters.resume();
  if (status && parts_.pool.dirty_bytes() == 0) parts_.health.report(Health::Of::kData, {});  // the data that could not be written is gone
  if (status || (told_ == status.error().message && now_ns - told_ns_ < kTellAgainNs)) return;
  told_ = status.error().message;
  told_ns_ = now_ns;
  log::error("upkeep: {}", told_);
}

bool Keeper::mend_index() {
  if (parts_.index.damaged()) {
    const Status mended = parts_.index_rebuild.repair(parts_.index);
    parts_.health.report(Health::Of::kIndex, mended);
    if (!mended) return false;
  }
  const uint64_t rebuilds = parts_.index_rebuild.rebuilds();  // the committer may have rebuilt it
  if (std::exchange(index_rebuilds_, rebuilds) == rebuilds) return false;
  parts_.health.report(Health::Of::kIndex, {});
  parts_.index.keep_in_memory();
  return true;
}

// Seals and journals finished bodies, which frees what they replace; then gives everything back that is dead and not in use, and waiting
// calls try again. Returns true if any call waited.
bool Keeper::make_room() {
  auto round = parts_.space_waiters.begin_round();
  constexpr int64_t kAgainNs = 1'000'000'000;
  if (!round && held_.is_held() && (reclaim_wanted_ || running_ns() - held_.tried_ns() >= kAgainNs)) round = held_.round();
  if (!round) return false;
  if (await_claim(*round)) return true;
  // Records tell no length of raw files, so removed extents count as well.
  const auto given_back = [&] { return parts_.counters.reclaimed_bytes + parts_.counters.removed_extents; };
  const uint64_t before = given_back(), orphaned = parts_.space.orphaned_bytes();
  const int64_t begun_ns = parts_.clock.monotonic_ns();
  parts_.work.run();  // files that nobody needs are removed there, which releases their reservations
  if (parts_.tree.has_versions()) parts_.tree.write().sweep_versions(/*all=*/false, /*room_is_wanted=*/true);
  const bool evicted = parts_.eviction.evict_for_room(round->pressure);
  end_lingering(/*all=*/true);
  const uint64_t wanted = parts_.eviction.room_wanted(round->pressure);
  const bool compacted = parts_.compactor != nullptr && parts_.compactor->step(wanted, /*waited_for=*/true);
  evicted && !compacted ? parts_.drainer.journal_names() : parts_.drainer.drain(/*for_room=*/true);
  Reclaimer::Amount amount{.most_ns = kWaitedReclaimNs};
  if (evicted) amount.enough_bytes = parts_.eviction.bytes_to_punch_for_room(round->pressure);
  note_upkeep(parts_.checkpointer.index_point(amount), parts_.clock.monotonic_ns());
  const bool sweeps = sweep_packs();
  if (parts_.compactor != nullptr) parts_.compactor->keep_room();
  // If deaths in this round made a pack worth emptying, the calls wait for the next round.
  const bool compacts = parts_.compactor != nullptr && given_back() == before && parts_.compactor->is_under_way(wanted);
  const bool goes_on = sweeps || (compacts && parts_.compactor->is_listing()) || (parts_.checkpointer.reclaim_was_cut_short() && given_back() != before);
  const bool records_went = !goes_on && (parts_.checkpointer.checkpoint_for_room() || parts_.checkpointer.shrink_index());
  last_index_point_ns_ = parts_.clock.monotonic_ns();
  parts_.watch.measure_all();
  if (parts_.shared != nullptr) parts_.shared->gave_back();
  if (evicted) parts_.eviction.note_round(begun_ns);
  const bool swept = parts_.space.orphaned_bytes() < orphaned, gave_back = given_back() != before || records_went || swept || compacts;
  if (gave_back) held_.restart_time();
  if (!hold_round(*round, gave_back)) end_round(*round, gave_back, goes_on);
  return true;
}

void Keeper::end_round(const SpaceWaiters::Round& round, bool gave_back, bool goes_on) {
  held_.end();
  parts_.space_waiters.end_round(round, gave_back, goes_on);
}

// Returns true if the round ends or is held without any work here: of a capacity shared by several nodes more can be claimed, or others
// evict chunks that are older than those of this node.
bool Keeper::await_claim(const SpaceWaiters::Round& round) {
  if (parts_.shared == nullptr || stopping_) return false;
  // Room may have come since: others evict, and this node evicts ahead of the calls.
  const uint64_t room = parts_.space.room_bytes(), enough = claim_grain(parts_.space.limit_bytes()) / 4;
  const bool has_come = held_.is_held() ? room >= held_.least_room_bytes() + enough : round.pressure == 0 && room >= enough;
  if (has_come) {
    end_round(round, /*gave_back=*/true);
    return true;
  }
  using enum SharedCapacity::Room;
  switch (parts_.shared->look_for_room(held_.is_held())) {
    case kOwn: return false;
    case kClaimed: end_round(round, /*gave_back=*/true, /*goes_on=*/room >= enough); return true;  // not again and again for a little each time
    case kAwaited: hold(round); return true;
    case kNone:
      held_.restart_time();
      end_round(round, /*gave_back=*/false);
      return true;
  }
  return false;
}

// The space to come back is held for other nodes: the calls wait until those have followed, which takes a second, or have not followed for
// so long that their readers get errors instead. Such nodes are given up, once in a round, if the round has been held for long, or if a call
// waits that earlier rounds did not help, whatever little came back meanwhile. Returns true if the round is held: it gave nothing back, and may yet.
bool Keeper::hold_round(const SpaceWaiters::Round& round, bool gave_back) {
  // What was evicted a moment ago comes back within this time if all nodes follow; so does what another node gives back that has
  // just given up a node.
  constexpr int64_t kFollowedNs = 2'000'000'000;
  if (stopping_ || (gave_back && round.pressure == 0)) return false;
  const int64_t waited_ns = held_.waited_ns(running_ns());
  const uint64_t held_bytes = parts_.checkpointer.holds() == nullptr ? 0 : parts_.checkpointer.awaited_from_peers_bytes();
  const bool gave_up = held_bytes > 0 && (round.pressure > 0 || waited_ns >= kPatienceNs) && give_up_on_peers(held_bytes, kPatienceNs);
  if (gave_back) return false;
  const bool others_make_room = parts_.shared != nullptr && parts_.shared->others_may_make_room();
  if (held_bytes == 0 && !others_make_room) return false;
  if (!gave_up && waited_ns >= kPatienceNs + kFollowedNs) {
    held_.restart_time();
    if (others_make_room) parts_.shared->lose_patience();
    return false;
  }
  hold(round);
  return true;
}

// Gives nodes up in the same way for room that others lack, while no call waits here. Their calls are refused after as long a wait as calls here.
void Keeper::hold_for_others() {
  const bool lacking = parts_.shared != nullptr && parts_.shared->is_shared() && parts_.space_waiters.count() == 0 &&
                       parts_.shared->plan().others_lack;
  const uint64_t held_bytes = lacking && parts_.checkpointer.holds() != nullptr ? parts_.checkpointer.awaited_from_peers_bytes() : 0;
  const uint64_t reclaimed = parts_.counters.reclaimed_bytes;
  const int64_t now_ns = running_ns();
  if (held_bytes == 0 || reclaimed != reclaimed_while_held_) others_waiting_.end();
  reclaimed_while_held_ = reclaimed;
  if (held_bytes == 0) return;
  others_waiting_.begin(now_ns);
  if (others_waiting_.waited_ns(now_ns) >= kPatienceForOthersNs && give_up_on_peers(held_bytes, kPatienceForOthersNs)) others_waiting_.end();
}

// Returns false if no other node keeps that space back any more.
bool Keeper::give_up_on_peers(uint64_t held_bytes, int64_t waited_ns) {
  const std::string given_up = parts_.checkpointer.holds()->lose_patience(waited_ns);
  if (given_up.empty()) return false;
  log::warn("a full volume waited {} s for node {} to follow: up to {} are given back, and what it still reads there fails", waited_ns / 1'000'000'000,
            given_up, format_size(held_bytes));
  want_reclaim();
  return true;
}

void Keeper::want_reclaim() {
  reclaim_wanted_ = true;
  parts_.wakeup.wake();
}

// Returns true if there is more to do.
bool Keeper::sweep_packs() {
  if (parts_.checkpointer.judged_tail() || parts_.checkpointer.holds_earlier_lives()) return false;
  const OrphanSweep::Packs swept = parts_.sweep.sweep_packs();
  if (swept == OrphanSweep::Packs::kGaveBack) parts_.watch.measure_all();
  return swept == OrphanSweep::Packs::kGoOn;
}

void Keeper::end_lingering(bool all) {
  StaleOpens::Released released;
  parts_.stale_opens.expire(/*all=*/parts_.checkpointer.nobody_reads(), released);
  Tree::Write tree = parts_.tree.write();
  tree.let_go(released);
  tree.end_lingering(all);
}

}  // namespace kvcachefs
