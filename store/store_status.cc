// Space, counters, options of a running store.
#include <fmt/format.h>

#include "store/journal/file_header.h"
#include "store/store_impl.h"

namespace kvcachefs {

FileSystemSpace StoreImpl::space() {
  if (!volume_->features().network) raw_space_->measure_changed();
  FileSystemSpace result;
  const uint64_t limit = space_.limit_bytes();
  result.blocks = limit / kBlockBytes;
  result.blocks_free = std::min(eviction_->shown_free_bytes(), limit) / kBlockBytes;
  const IndexTotals totals = index_->totals();
  constexpr uint64_t kMaxFiles = uint64_t{1} << ObjectId::kNumberBits;
  result.files = kMaxFiles;
  result.files_free = kMaxFiles - std::min(kMaxFiles, totals.objects);
  return result;
}

void StoreImpl::tell_probes(StoreStatus& status) {
  const int64_t now = clock_.monotonic_ns();
  const ProbeCounts::Totals total = probes_.totals();
  status.probe_hits = total.hits;
  status.probe_misses = total.misses();
  status.probe_misses_never_seen = total.never_seen;
  status.probe_misses_evicted = total.evicted;
  status.probe_misses_quarantined = total.quarantined;
  status.lookups_before_store = total.before_store;
  const auto minute = probes_.over(ProbeCounts::Window::kMinute, now);
  const auto hour = probes_.over(ProbeCounts::Window::kHour, now);
  const auto day = probes_.over(ProbeCounts::Window::kDay, now);
  status.hit_ratio_minute = minute.hit_ratio();
  status.hit_ratio_hour = hour.hit_ratio();
  status.hit_ratio_day = day.hit_ratio();
  status.evicted_ratio_minute = minute.evicted_ratio();
  status.evicted_ratio_hour = hour.evicted_ratio();
  status.evicted_ratio_day = day.evicted_ratio();
}

void StoreImpl::tell_evictions(StoreStatus& status) {
  const EvictionCounts evictions = evictor_->counts();
  status.eviction_objects = evictions.evicted_objects;
  status.eviction_bytes = evictions.evicted_bytes;
  status.eviction_leases_broken = evictions.broken_leases;
  status.eviction_refused = evictions.refused;
  status.eviction_came_back = evictions.came_back;
  status.eviction_known_objects = evictions.objects;
  status.eviction_known_units = evictions.units;
  status.eviction_memory_bytes = evictions.memory_bytes;
  status.eviction_remembered_units = evictions.remembered_units;
  const auto of = [](const EvictionCounts::Amount& amount) { return StoreStatus::Evicted{amount.objects, amount.bytes}; };
  const auto& why = evictions.evicted_why;
  status.evicted_ahead = of(why[static_cast<size_t>(Evictor::Why::kAhead)]);
  status.evicted_waited_for = of(why[static_cast<size_t>(Evictor::Why::kWaitedFor)]);
  status.evicted_lease_broken = of(why[static_cast<size_t>(Evictor::Why::kLeaseBroken)]);
  const auto& age = evictions.evicted_age;
  status.evicted_below_minute = of(age[static_cast<size_t>(Evictor::Age::kBelowMinute)]);
  status.evicted_below_hour = of(age[static_cast<size_t>(Evictor::Age::kBelowHour)]);
  status.evicted_below_day = of(age[static_cast<size_t>(Evictor::Age::kBelowDay)]);
  status.evicted_older = of(age[static_cast<size_t>(Evictor::Age::kOlder)]);
  const EvictionSurvey survey = evictor_->survey();
  status.coldest_age_ms = survey.coldest_ms;
  status.leased_objects = survey.leased_objects;
  const SpaceWaiters::Waited waited = space_waiters_.waited();
  status.room_waits = waited.calls;
  status.room_wait_ms = static_cast<uint64_t>(waited.total_ns / 1'000'000);
  status.room_wait_longest_ms = static_cast<uint64_t>(waited.longest_ns / 1'000'000);
  status.pinned_objects = evictions.pinned_objects;
  status.pinned_bytes = evictions.pinned_bytes;
}

// The pass begins once everything accepted so far is in the committed index, which the pass goes through.
Status StoreImpl::begin_scrub() {
  if (read_only_) return fail(Code::kReadOnly, "the mount is read-only: what is found damaged could not be recorded");
  drain(/*sync=*/false, [this](Status) {
    keeper_work_.add([this] {
      keeper_->index_now();
      scrubber_->begin_now();
    });
  });
  return {};
}

StoreStatus StoreImpl::status() {
  StoreStatus status;
  status.node = identity_.node;
  status.volume_root = volume_->root();
  const VolumeFeatures& features = volume_->features();
  status.volume_filesystem = features.filesystem;
  status.io_uring = features.io_uring;
  status.direct_io = features.direct_io;
  status.punch_hole = features.punch_hole;
  status.network_volume = features.network;
  status.locks_are_local = features.locks_are_local;
  status.index_directory = index_directory_;
  status.volume_uuid = uuid_digits(identity_.volume_uuid);
  status.epoch = identity_.epoch;
  Health::State health = health_.state();
  status.state = health.reason.empty() ? "ok" : "degraded";
  status.state_reason = std::move(health.reason);
  status.state_since_ns = health.since_ns;
  if (index_->damaged() && status.state == "ok") {  // found a moment ago
    status.state = "degraded";
    status.state_reason = fmt::format("index {} is damaged; it is built anew", index_directory_);
    status.state_since_ns = clock_.realtime_ns();
  }
  status.limit_bytes = space_.limit_bytes();
  status.claim_bytes = std::min(space_.claim_bytes(), status.limit_bytes);
  status.wish_bytes = status.claim_bytes;
  if (shared_capacity_) {
    const ClaimPlan plan = shared_capacity_->plan();
    status.wish_bytes = plan.wish_bytes;
    status.unclaimed_bytes = plan.unclaimed_bytes;
  }
  status.physical_bytes = space_.physical_bytes();
  status.live_bytes = space_.live_bytes();
  status.reclaimable_bytes = space_.dead_bytes() + space_.orphaned_bytes();
  status.staged_bytes = space_.reserved_bytes();
  status.reserve_bytes = reserve_->held_bytes();
  const Scrubber::Counts scrubbed = scrubber_->counts();
  status.scrub_running = scrubbed.running;
  status.scrub_ended_ns = scrubbed.last_ended_ns;
  status.scrub_passes = scrubbed.passes;
  status.scrub_bodies = scrubbed.bodies;
  status.scrub_bytes = scrubbed.bytes;
  status.scrub_damaged = scrubbed.damaged;
  status.scrub_unreadable = scrubbed.unreadable;
  const IndexTotals totals = index_->totals();
  status.objects_total = totals.objects;
  status.directories = totals.directories;
  status.objects_inline = totals.inline_bodies;
  status.objects_packed = totals.packed_bodies;
  status.objects_solo = totals.solo_bodies;
  status.objects_raw = totals.raw_bodies;
  status.objects_quarantined = totals.quarantined;
  status.objects_in_ram = tree_->read().objects_in_ram();
  status.memory_limit_bytes = pool_->limit_bytes();
  status.memory_used_bytes = pool_->used_bytes();
  status.memory_dirty_bytes = pool_->dirty_bytes();
  status.memory_files = file_policy_->in_use();
  status.memory_file_bytes = files_->file_bytes();
  status.memory_file_spare_bytes = files_->spare_bytes();
  status.memory_file_passed_bytes = files_->passed_bytes();
  status.memory_mapped_bytes = pool_->mapped_bytes();
  status.waiting_bytes = waiting_bytes_->memory_bytes();
  status.waiting_parked_bytes = waiting_bytes_->parked_bytes();
  status.waiting_writes = resumer_.waiters().count() + space_waiters_.count();
  const Counters& c = counters_;
  tell_probes(status);
  status.opens = c.opens;
  status.passthrough_opens = c.passthrough_opens;
  status.memory_file_opens = c.memory_file_opens;
  status.memory_files_taken = c.memory_files_taken;
  status.memory_files_refused = c.memory_files_refused;
  status.memory_files_moved = c.memory_files_moved;
  status.read_bytes_from_ram = c.read_bytes_from_ram;
  status.read_bytes_from_volume = c.read_bytes_from_volume;
  status.read_requests = c.read_requests;
  status.write_received_bytes = c.write_received_bytes;
  status.write_volume_bytes = c.write_volume_bytes;
  status.write_requests = c.write_requests;
  status.sealed_bodies = c.sealed_bodies;
  status.deduplicated_bodies = c.deduplicated_bodies;
  status.journal_bytes = committer_->journal_bytes();
  status.journal_batches = c.journal_batches;
  status.syncs = c.syncs;
  status.index_commits = c.index_commits;
  status.checkpoints = c.checkpoints;
  status.reclaimed_bytes = c.reclaimed_bytes;
  status.punched_ranges = c.punched_ranges;
  status.removed_extents = c.removed_extents;
  status.moved_bodies = c.moved_bodies;
  status.lost_names = c.lost_names;
  status.moved_bytes = c.moved_bytes;
  tell_evictions(status);
  other_nodes_.tell(status);
  status.errors_checksum = c.errors_checksum;
  status.errors_volume_read = c.errors_volume_read;
  status.errors_volume_write = c.errors_volume_write;
  status.errors_journal = c.errors_journal;
  status.errors_index = c.errors_index;
  status.errors_no_space = c.errors_no_space;
  const PrefetchTotals prefetch = accesses_->totals();
  status.prefetch_read_bytes = prefetch.read_bytes;
  status.prefetch_used_bytes = prefetch.used_bytes;
  status.prefetch_wasted_bytes = prefetch.wasted_bytes;
  status.prefetch_late_bytes = prefetch.late_bytes;
  status.prefetch_kernel_bytes = c.kernel_ahead_bytes;
  status.open_handles = c.open_handles;
  status.replayed_batches = c.replayed_batches;
  status.dropped_bodies = c.dropped_bodies;
  status.records_left_out = c.records_left_out;
  status.verified_bodies = c.verified_bodies;
  status.swept_files = c.swept_files;
  status.index_rebuilt = index_rebuilt_;
  status.unclean_start = unclean_start_;
  return status;
}

void StoreImpl::refresh(StatusCompletion done) {
  if (!peers_) return done({});
  peers_->refresh(std::move(done));
}

void StoreImpl::set_node_lost(std::function<void()> then) {
  if (fence_) fence_->on_lost(std::move(then));
}

FollowedByPeers StoreImpl::followed_by_peers() { return peers_ ? peers_->followed_to(journal_->position()) : FollowedByPeers(); }

Status StoreImpl::set_option(std::string_view name, std::string_view value) {
  KVC_ASSIGN(SpaceInfo backing, volume_->space());
  const uint64_t interval_ms = options_.flush_interval_ms();
  KVC_TRY(options_.set(name, value, option_defaults(backing)));
  space_.set_backing(backing);  // the free space depends on keep_free
  if (options_.flush_interval_ms() < interval_ms) dirty_.wake(true);  // the lane may be waiting for the old, longer interval
  read_ahead_->kick();  // there may be room for more
  return {};
}

}  // namespace kvcachefs
