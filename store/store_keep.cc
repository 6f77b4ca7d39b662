// The keeper: one thread for what must happen now and then. Syncs what was written, lets the index catch up, writes
// checkpoints, gives space back, and takes work off the threads that must not block.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <future>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {
constexpr int64_t kIndexIntervalNs = 5'000'000'000;    // the index follows at least this often ...
constexpr uint64_t kIndexRows = 50'000;                // ... or when this many rows wait
constexpr int64_t kReclaimNs = 1'000'000'000;          // at a time: what was written since is to be synced as well
constexpr int64_t kWaitedReclaimNs = 100'000'000;      // ... while calls wait for what comes of it
constexpr int64_t kTidyNs = 5'000'000'000;             // after so long without an eviction short ranges are given back as well
constexpr uint64_t kReclaimBytes = 64 * kMiB;          // dead bytes that are worth a sync of their own
constexpr uint64_t kLongRangeBytes = 2 * kMiB;         // of which it does not matter that each costs a call
constexpr uint64_t kManyJournalFiles = 32;
constexpr uint64_t kRoomCheckpointBytes = 2 * kMiB;    // of journals and checkpoint: where there is no room, they are worth another
constexpr uint64_t kWorthPart = 16;                    // ... if it is smaller by so much
}  // namespace

// Once there is room again what was taken of it. A small volume is not filled with it.
void StoreImpl::refill_reserve() {
  constexpr uint64_t kReserveBytes = 16 * kMiB;  // some 100,000 removals; a batch is half of it at most
  constexpr uint64_t kSmallPart = 256;           // of the file system, and a quarter of it of the capacity
  if (read_only_) return;
  auto backing = volume_->space();
  if (!backing) return;
  const uint64_t small = std::min(backing->total_bytes / kSmallPart, space_.limit_bytes() / (kSmallPart / 4));
  const uint64_t bytes = std::min(kReserveBytes, small - small % kBlockBytes), held = reserve_->held_bytes();
  const uint64_t lacks = bytes - std::min(bytes, held);
  if (lacks == 0 || !space_.try_reserve(lacks)) return;  // the capacity holds for it as well
  if (Status refilled = reserve_->refill(bytes, backing->available_bytes); !refilled)
    log::warn("room for the journal could not be kept: {}", refilled.error().message);
  measure_overhead();
  space_.release(lacks);
}

// Others may fill the file system, or make room in it, at any time: what is accepted is held to what is free now.
void StoreImpl::measure_backing() {
  look_for_volume();
  raw_space_->measure_changed();
  auto backing = volume_->space();
  if (!backing) return;
  follow_size(*backing);
  space_.set_backing(*backing);
  // There is more than before: what was refused may be taken now.
  if (backing->available_bytes > backing_seen_.available_bytes || backing->available_files > backing_seen_.available_files)
    refusals_.try_soon();
  backing_seen_ = *backing;
  // The bulk lane tries again, or finds that nothing is left to try with.
  if (refusals_.is_failing()) dirty_.wake(true);
  keep_spare_files(*backing);
}

// Its files that are open can be read and written still where its directories were removed, but nothing of that is kept.
void StoreImpl::look_for_volume() {
  const auto found = volume_->info(epoch_directory(identity_.node, identity_.epoch));
  const bool gone = !found && found.error().code == Code::kNotFound;
  if (gone == refusals_.is_gone()) return;
  Status status;
  if (gone) {
    const Error why{Code::kIo, 0, fmt::format("volume {}: its directories were removed, or others took their place, while it was mounted: what was "
                                              "not read before is lost; `kvcachefs umount --lazy` ends this mount",
                                              volume_->root())};
    log::error("{}", why.message);
    status = std::unexpected(why);
    refusals_.set_gone(why);
  } else {
    refusals_.set_gone({});
  }
  health_.report(Health::Of::kVolume, status);
  dirty_.wake(true);  // those who wait for what cannot come hear of it
}

// What was told as a percentage is one of the file system as it is now: disks are enlarged while they are mounted.
void StoreImpl::follow_size(const SpaceInfo& backing) {
  if (backing.total_bytes == backing_seen_.total_bytes) return;
  if (options_.follow(option_defaults(backing))) space_.hope();
}

// Others may take the last inodes, or this process may run into its limit of descriptors, at any time.
void StoreImpl::keep_spare_files(const SpaceInfo& backing) {
  constexpr size_t kSpares = 2;  // a pack for each lane
  constexpr uint64_t kFewFiles = 500'000, kFewDescriptors = 8192;
  if (read_only_ || !background_) return;
  struct rlimit descriptors {};
  const bool few_descriptors = getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur < kFewDescriptors;
  if (backing.available_files > kFewFiles && !few_descriptors) return;
  if (backing.available_files == 0 && spares_refused_) return;
  const Status kept = extents_->keep_spares(kSpares);
  if (!kept && !spares_refused_) log::warn("no files could be made for later: {}", kept.error().message);
  spares_refused_ = !kept;
}

void StoreImpl::refresh_space() {
  measure_overhead();
  measure_backing();
  std::vector<ExtentId> raw;
  dead_.for_each([&](const FreedPlace& freed) {  // those who have them open may write to them still
    if (freed.place.kind == PlaceKind::kRaw) raw.push_back(freed.place.extent);
  });
  if (index_->totals().raw_bodies > 0) {
    Status status = index_->scan_extents([&](ExtentId id, const ExtentUsage& usage) {
      if (usage.kind == PlaceKind::kRaw) raw.push_back(id);
      return true;
    });
    if (!status) return;
  }
  raw_space_->measure_all(std::move(raw), [this](ExtentId id) { return extents_->info(id, PlaceKind::kRaw); });
}

// Journals with their reserve, checkpoint and index, without a look at the volume but one: at the index, wherever that is.
void StoreImpl::measure_overhead() {
  RecordSpace::Measured measured;
  measured.journal_bytes = older_journals_bytes_ + committer_->journal_bytes();
  measured.checkpoint_bytes = checkpoint_bytes_;
  measured.reserve_bytes = reserve_->held_bytes();
  struct stat data {};
  if (::stat((index_directory_ + "/data.mdb").c_str(), &data) == 0 && !volume_->features().network)
    measured.index_bytes = static_cast<uint64_t>(data.st_blocks) * 512;
  record_space_->measured(measured);
}

bool StoreImpl::keeper_step(bool force) {
  probes_.sample(clock_.monotonic_ns());
  const bool made_room = make_room();
  const int64_t begun_ns = clock_.monotonic_ns();
  const bool evicted = evict_ahead();
  bool due = force || evicted || judged_tail_ || epochs_due_ || orphans_.extents_due() || orphans_.changed() || reclaim_cut_short_;
  const bool reclaim_wanted = reclaim_wanted_.exchange(false);
  const bool dead = dead_.any();  // also raw files, whose records tell no length
  const int64_t now = clock_.monotonic_ns();
  const bool tidies = now - eviction_.last_ns > kTidyNs;
  const uint64_t left = tidies ? 0 : eviction_.left_bytes;
  const bool dead_worth_it = dead_.bytes() > kReclaimBytes + left;
  due |= tidies && eviction_.left_bytes > 0;
  due |= reclaim_wanted && dead;
  const bool ran = keeper_work_.run(), filled = fill_evictor(/*to_the_end=*/false);
  const bool worked = ran || filled;
  due |= mend_index();  // what failed meanwhile can succeed now
  if (tree_->has_versions()) tree_->write().sweep_versions(/*all=*/false);
  end_lingering();
  for (auto& then : read_ahead_->kernel().take_stalled()) resumer_.answer_later(std::move(then));
  files_->settle();
  cache_->keep_to_limit();
  record_waiters_->resume();
  log::tell_repeated();
  const uint64_t rows = index_->overlay_rows();
  if (now - verified_again_ns_ > kIndexIntervalNs) {
    verified_again_ns_ = now;
    unverified_->look_again(sealer_->memory_to_seal(nullptr));
    refill_reserve();
  }
  const bool waiting = rows > 0 || commits_.unsynced_bytes() > 0;
  // What somebody had open when it was removed can be given back now.
  const uint64_t hopes = space_.hopes();
  const bool let_go = dead && hopes != hopes_at_index_point_;
  due |= record_waiters_->want_upkeep();
  due |= dead_worth_it || rows > kIndexRows || ((waiting || let_go) && now - last_index_point_ns_ > kIndexIntervalNs);
  const bool swept = sweep_packs();
  if (!due) {
    measure_backing();
    return made_room || worked || swept;
  }
  last_index_point_ns_ = now;
  hopes_at_index_point_ = hopes;
  Reclaimer::Amount amount{.most_ns = kReclaimNs};
  if (!tidies && !force) amount.enough_bytes = bytes_to_punch(water_marks().low);
  note_upkeep(index_point(amount), now);
  refresh_space();
  if (evicted) {
    note_eviction_round(begun_ns);
    // Who began to wait meanwhile need not wait for a round of its own.
    if (const auto round = space_waiters_.begin_round()) space_waiters_.end_round(*round, true);
  }
  return true;
}

// What goes on failing, perhaps each second, is told now and then.
void StoreImpl::note_upkeep(const Status& status, int64_t now_ns) {
  constexpr int64_t kTellAgainNs = 60'000'000'000;
  health_.report(Health::Of::kUpkeep, status);
  status ? upkeep_backoff_.succeeded() : upkeep_backoff_.failed(now_ns);
  record_waiters_->resume();
  if (status && pool_->dirty_bytes() == 0) health_.report(Health::Of::kData, {});  // what could not be written is gone
  if (status || (upkeep_told_ == status.error().message && now_ns - upkeep_told_ns_ < kTellAgainNs)) return;
  upkeep_told_ = status.error().message;
  upkeep_told_ns_ = now_ns;
  log::error("upkeep: {}", upkeep_told_);
}

// Here, where nobody waits: the committer has answers to give, and does what is left.
void StoreImpl::sync_ahead() {
  const Status status = extents_->sync_ahead();
  if (status) return;
  counters_.errors_volume_write.fetch_add(1, std::memory_order_relaxed);
  health_.report(Health::Of::kData, status);
}

Status StoreImpl::sync_point() {
  constexpr size_t kMostRows = 100'000;
  raw_space_->sync_begins();
  sync_ahead();
  relocator_->rescue([this] {
    drain_and_wait();
    sync_ahead();
  });
  CommitRequest request;
  request.sync = request.sync_all = true;
  if (!reserve_->is_cut()) request.successors = accesses_->changed_rows(kMostRows);  // else they wait for room
  Status status = committer_->commit_and_wait(std::move(request));
  if (status) raw_space_->synced();
  return status;
}

bool StoreImpl::mend_index() {
  if (index_->damaged()) {
    const Status mended = index_rebuild_->repair(*index_);
    health_.report(Health::Of::kIndex, mended);
    if (!mended) return false;
  }
  const uint64_t rebuilds = index_rebuild_->rebuilds();  // the committer may have done it
  if (std::exchange(index_rebuilds_, rebuilds) == rebuilds) return false;
  health_.report(Health::Of::kIndex, {});
  index_->keep_in_memory();
  return true;
}

Status StoreImpl::index_point(const Reclaimer::Amount& amount) {
  reclaim_cut_short_ = false;
  std::vector<FreedPlace> dead = dead_.take();  // their records are synced by the sync point below
  record_space_->index_commit_begins();
  Status status = sync_point();
  const bool synced = status.has_value();
  if (status) {
    orphans_.note_leftovers(*index_, dead);
    status = index_->commit();
    if (status) record_space_->index_committed();
  }
  if (status && judged_tail_) status = write_checkpoint();
  if (!status) {
    counters_.errors_index.fetch_add(1, std::memory_order_relaxed);
    // An index that cannot be written, on a full disk perhaps, is no reason to give nothing back: the journal says it, synced.
    // Unless a start left records out, which is settled by the first checkpoint only.
    if (synced && !judged_tail_) reclaim(std::exchange(dead, {}), amount);
    dead_.put_back(std::move(dead));
    return status;
  }
  counters_.index_commits.fetch_add(1, std::memory_order_relaxed);
  judged_tail_ = false;
  index_rebuild_->allow(true);
  const bool list = std::exchange(epochs_due_, false);
  if (orphans_.take_extents_due() || list) sweep_extents(dead, list);
  if (!dead.empty()) kill_point("reclaim-begun");
  reclaim(std::move(dead), amount);
  measure_overhead();
  if (record_space_->wants_checkpoint() || journal_files_ > kManyJournalFiles) return write_checkpoint();
  return {};
}

uint64_t StoreImpl::least_checkpoint_bytes() const {
  constexpr uint64_t kObjectBytes = 64;  // with a short name
  const IndexTotals totals = index_->totals();
  return (totals.objects + totals.directories) * kObjectBytes + totals.live_bytes / kUnitBytes * 8;
}

// A copy of everything live, from the index as it was just committed: only this thread commits, so the scan sees one
// state. Journals before it can go afterwards.
Status StoreImpl::write_checkpoint() {
  if (checkpoint_to_clear_) return remove_before_checkpoint();  // it is whole: only what it covers was not removed
  // Not to fill it in vain; but nothing is given back before the first after an unclean end, and root may have more than that.
  if (auto backing = volume_->space(); backing && !judged_tail_ && backing->available_bytes < least_checkpoint_bytes())
    return fail(Code::kNoSpace, fmt::format("{}: a checkpoint takes {} at least, and {} are free", volume_->root(),
                                            format_size(least_checkpoint_bytes()), format_size(backing->available_bytes)));
  const uint64_t seq = checkpoint_seq_++;  // never again: one that failed may have left its name
  CheckpointHeader header;
  header.covers = index_->position();
  header.stamp = index_->stamp();
  header.next_number = next_number_.load();
  KVC_ASSIGN(auto writer, journal_room_->write([&] { return CheckpointWriter::create(volume_, identity_, seq, header); }));
  Status status;
  auto add = [&](Record record) {
    status = writer->add(std::move(record));
    return status.has_value();
  };
  KVC_TRY(index_->scan_objects([&](ObjectRecord&& row) { return add(PutRecord{std::move(row)}); }));
  KVC_TRY(status);
  KVC_TRY(index_->scan_names([&](NameRecord&& row) { return add(std::move(row)); }));
  KVC_TRY(status);
  KVC_TRY(index_->scan_successors([&](SuccessorsRecord&& row) { return add(std::move(row)); }));
  KVC_TRY(status);
  KVC_TRY(index_->scan_peer_records(add));
  KVC_TRY(status);
  if (index_->damaged()) return fail(Code::kCorrupt, "a checkpoint was begun of an index that is damaged");  // it may lack rows
  KVC_TRY(writer->finish());
  CheckpointInfo info;
  info.epoch = identity_.epoch;
  info.seq = seq;
  info.header = header;
  counters_.checkpoints.fetch_add(1, std::memory_order_relaxed);
  if (auto file = volume_->info(checkpoint_path(identity_.node, info.epoch, info.seq))) checkpoint_bytes_ = file->size_bytes;
  if (peers_) peers_->note_checkpoint({info.epoch, info.seq});
  checkpoint_to_clear_ = std::move(info);
  return remove_before_checkpoint();
}

Status StoreImpl::remove_before_checkpoint() {
  // Goes on in a new file: if nothing was appended meanwhile, the one before it can go too.
  KVC_TRY(journal_room_->write([this] { return journal_->rotate(); }));
  KVC_TRY(remove_covered(*volume_, identity_, checkpoint_to_clear_->header.covers, *checkpoint_to_clear_));
  checkpoint_to_clear_.reset();
  journal_files_ = 1;
  older_journals_bytes_ = 0;
  committer_->note_checkpoint();
  measure_overhead();
  return {};
}

// --- room for who found none ---

void StoreImpl::want_reclaim() {
  reclaim_wanted_ = true;
  keeper_wakeup_.wake();
}

// Journals and a checkpoint of which most is gone (attributes and small bodies lie in them) are room, too. True if they were
// replaced by a smaller checkpoint.
bool StoreImpl::checkpoint_for_room() {
  constexpr uint64_t kObjectBytes = 512;  // about, with its name
  const IndexTotals totals = index_->totals();
  const uint64_t checkpoint = totals.inline_bodies * options_.inline_below_bytes() +
                              (totals.objects + totals.directories) * kObjectBytes + totals.live_bytes / kUnitBytes * 8;
  const auto records = [&] { return checkpoint_bytes_ + older_journals_bytes_ + committer_->journal_bytes(); };
  const uint64_t before = records();
  if (before < kRoomCheckpointBytes || checkpoint > before / 2) return false;
  Status status = write_checkpoint();
  if (!status) log::error("checkpoint: {}", status.error().message);
  return status && records() < before - before / kWorthPart;  // else the next would give no more back
}

// Seals and journals what is finished, which gives up what it replaces; then everything dead and not in use is given back,
// and those who wait try again. True if anybody waited.
bool StoreImpl::make_room() {
  const auto round = space_waiters_.begin_round();
  if (!round) return false;
  // Of raw files no record tells the length: that one went counts, too.
  const auto given_back = [&] { return counters_.reclaimed_bytes + counters_.removed_extents; };
  const uint64_t before = given_back(), orphaned = space_.orphaned_bytes();
  const int64_t begun_ns = clock_.monotonic_ns();
  const bool evicted = evict_for_room(round->pressure);
  end_lingering(/*all=*/true);
  evicted ? journal_names() : drain_and_wait(/*for_room=*/true);
  Reclaimer::Amount amount{.most_ns = kWaitedReclaimNs};
  if (evicted) amount.enough_bytes = bytes_to_punch(room_wanted(round->pressure));
  note_upkeep(index_point(amount), clock_.monotonic_ns());
  const bool sweeps = sweep_packs();
  const bool goes_on = sweeps || (reclaim_cut_short_ && given_back() != before);
  const bool journals_went = !goes_on && checkpoint_for_room();
  last_index_point_ns_ = clock_.monotonic_ns();
  refresh_space();
  if (evicted) note_eviction_round(begun_ns);
  const bool swept = space_.orphaned_bytes() < orphaned;
  space_waiters_.end_round(*round, given_back() != before || journals_went || swept, goes_on);
  return true;
}

void StoreImpl::drain_and_wait(bool for_room) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = promise->get_future();
  auto done = [promise](Status status) { promise->set_value(std::move(status)); };
  for_room ? bulk_->drain_for_room(std::move(done)) : bulk_->drain(/*sync=*/false, std::move(done));
  if (committer_->is_running()) {
    while (!stopping_ && answer.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    }
    return;
  }
  constexpr int kMaxRounds = 10'000;
  for (int i = 0; i < kMaxRounds && answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready; ++i) {
    bulk_->step(/*force=*/!for_room);
    urgent_->step();
    committer_->step();
  }
}

// --- giving space back (invariant 6: only after the records that gave it up, and their data, were synced) ---

void StoreImpl::reclaim(std::vector<FreedPlace> dead, const Reclaimer::Amount& amount) {
  tree_->write().drop_unread_places();
  const Reclaimer::Outcome outcome = reclaimer_->reclaim(std::move(dead), nobody_reads_ ? Reclaimer::Amount() : amount);
  reclaim_cut_short_ = outcome.cut_short;
  eviction_.left_bytes = outcome.left_bytes;
  eviction_.leaves_short_ranges = outcome.punched > 0 && outcome.punched_bytes / outcome.punched < kLongRangeBytes;
}

bool StoreImpl::still_needed(const FreedPlace& freed) { return !nobody_reads_ && tree_->read().still_needed(freed); }

}  // namespace kvcachefs
