// Start and end of a store: takes the node's lock, runs recovery/, builds the other rooms from the result; and at the end closes all of it.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <future>

#include <fmt/format.h>

#include "store/base/cgroup.h"
#include "store/base/descriptors.h"
#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/index/index.h"
#include "store/index/index_directory.h"
#include "store/journal/lost_records.h"
#include "store/peers/idle_part.h"
#include "store/peers/slot_reader.h"
#include "store/recovery/first_records.h"
#include "store/recovery/node_start.h"
#include "store/recovery/recovery.h"
#include "store/store_impl.h"
#include "store/upkeep/evict_guard.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMaxOpenExtents = 512;
constexpr uint64_t kStartBytes = 4 * kMiB;  // of new files and directories, generously
constexpr uint64_t kFinalCheckpointBytes = 8 * kMiB;  // of journal: a shorter one the next start replays as fast

JournalForm form_of_journal(const StoreOptions& options, const VolumeFeatures& features) {
  switch (options.journal) {
    case JournalOption::kPacked: return JournalForm::kPacked;
    case JournalOption::kBlocks: return JournalForm::kBlocks;
    case JournalOption::kAuto: break;
  }
  return journal_form(features);
}

uint64_t machine_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

StoreImpl::StoreImpl(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock)
    : StoreRooms(std::move(volume), std::move(options), clock) {
  const StoreOptions given = options_.current();
  background_ = given.background;
  read_only_ = given.read_only;
  care_ = given.care;
  verify_ = given.verify;
  resumer_.waiters().set_rules({
      .has_room_without_reads =
          [this](uint64_t lacks_bytes) {
            const uint64_t held = pool_->held_bytes(), loading = std::min(held, loader_->loading_bytes());
            return held - loading + lacks_bytes + cache_->left_to_others(MemoryFor::kWriter) <= pool_->limit_bytes();
          },
      .nothing_moves = [this] { return pool_->dirty_bytes() == 0 && loader_->loading_bytes() == 0; },
      .no_use = [this] { return refusals_.lasting(); },
  });
}

Status check_options(const StoreOptions& options) {
  KVC_TRY(check_store_options(options));
  return options.index_directory.empty() ? Status() : check_index_place(options.index_directory);
}

Result<std::unique_ptr<Store>> open_store(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock,
                                          std::string_view holder) {
  KVC_TRY(check_options(options));
  auto store = std::make_unique<StoreImpl>(std::move(volume), std::move(options), clock);
  KVC_TRY(store->start(holder));
  return store;
}

Result<std::unique_ptr<Store>> open_store_at(const std::string& volume_root, StoreOptions options, Clock& clock,
                                             std::string_view holder) {
  KVC_ASSIGN(auto volume, open_posix_volume(volume_root, {}));
  return open_store(std::move(volume), std::move(options), clock, holder);
}

Status StoreImpl::start(std::string_view holder) {
  const int64_t started_ns = clock_.monotonic_ns();
  NodeStart node(volume_, stamps_);
  KVC_ASSIGN(identity_, node.settle(options_.current().node, read_only_, other_nodes_.may_join(), options_.current().create));
  shared_ = other_nodes_.are_possible();
  auto lock = volume_->lock(fmt::format("nodes/{}/LOCK", identity_.node));
  if (!lock) {
    if (lock.error().code == Code::kBusy) lock.error().message = "volume " + volume_->root() + " is in use: " + lock.error().message;
    return std::unexpected(std::move(lock).error());
  }
  lock_ = std::move(*lock);
  // This node's lock was free. That is no proof where locks do not reach beyond the machine.
  if (shared_) KVC_TRY(check_lives_nowhere_else(*volume_, identity_, clock_));
  reserve_ = std::make_unique<Reserve>(volume_, reserve_path(identity_.node));
  journal_room_.emplace(*reserve_, counters_);
  if (!read_only_) find_room_to_begin(holder);
  KVC_TRY(lock_->describe(holder));
  KVC_ASSIGN(const SpaceInfo backing_seen, fill_in_options());
  const StoreOptions options = options_.current();
  raw_space_ = std::make_unique<RawSpace>(space_, volume_->features().blocks_lag);
  record_space_ = std::make_unique<RecordSpace>(space_, options.memory_bytes);
  pool_ = std::make_unique<MemoryPool>(options.memory_bytes, kSealingBytes);
  files_ = std::make_unique<MemoryFiles>(*pool_);
  file_policy_.emplace(MemoryFilePolicy::Parts{*files_, options_, clock_});
  file_mover_.emplace(FileMover::Parts{*pool_, *files_, *file_policy_, clock_, counters_, verify_ != Verify::kAlways,
                                       [this](uint64_t bytes) { return cache_->recover(bytes, MemoryFor::kReader); }});
  page_warmer_.emplace(PageWarmer::Parts{*pool_, *files_, [this] { index_->keep_in_memory(); }});
  waiting_bytes_ = std::make_unique<WaitingBytes>(
      volume_, WaitingBytes::Room{[this] { return space_.room_bytes(); }, [this](uint64_t bytes) { return space_.try_reserve(bytes); },
                                  [this](uint64_t bytes) { space_.release(bytes); }},
      fmt::format("nodes/{}/WAITING", identity_.node));
  pool_->set_give_spares([this](uint64_t bytes) { return files_->drop_spares(bytes); });
  pool_->set_available_callback([this] { resumer_.memory_came_back(); });
  if (pool_->try_reserve(kUnitBytes).bytes() == 0)
    return fail_errno(ENOMEM, "memory for chunks: see the limit on this process's address space (RLIMIT_AS, LimitAS=) and "
                              "vm.overcommit_memory with vm.overcommit_ratio");
  options_.subscribe([this](const StoreOptions& now) {
    pool_->set_limit_bytes(now.memory_bytes);
    space_.configure(now.capacity_bytes, now.keep_free_bytes);
  });

  KVC_ASSIGN(identity_.epoch, node.last_epoch(identity_));
  KVC_ASSIGN(Recovered found, recover({volume_, identity_, index_directory_, stamps_, *pool_, counters_, dead_, orphans_, [this](uint32_t last_epoch) {
                                            return journal_room_->write([&] { return note_lost_records(*volume_, identity_.node, last_epoch); });
                                          }}));
  index_ = std::move(found.index);
  index_->limit_kept(std::clamp(options.memory_bytes / 2, 32 * kMiB, 128 * kMiB));
  index_rebuilt_ = found.index_rebuilt;
  unclean_start_ = found.unclean;
  index_rebuild_ = std::make_unique<IndexRebuild>(*volume_, identity_, clock_);
  index_rebuild_->allow(!found.judged_tail);
  KVC_ASSIGN(const uint32_t kept_epoch, epochs_with_lost_records(*volume_, identity_.node));
  KVC_ASSIGN(NodeStart::Epoch epoch, node.begin_epoch(identity_, found.last_epoch, *index_, form_of_journal(options_.current(), volume_->features()),
                                                      [this](const auto& attempt) { return journal_room_->write(attempt); }));
  identity_.epoch = epoch.number;
  journal_ = std::move(epoch.journal);
  if (shared_) fence_ = std::make_unique<NodeFence>(volume_, identity_, static_cast<int64_t>(options_.current().fence_after_ms) * 1'000'000);
  const DescriptorShares shares = descriptor_shares();
  extents_ = std::make_unique<Extents>(volume_, identity_, std::min(kMaxOpenExtents, shares.open_extents));
  extents_->limit_made(shares.made_extents, [this] { keeper_wakeup_.wake(); });
  extents_->start_at(1);
  journal_room_->set_extents(*extents_);
  discards_.emplace(Discards::Parts{space_, dead_, keeper_work_, *extents_});
  changes_.emplace(BodyChanges::Parts{clock_, space_, *record_space_, dirty_, *discards_, options_});
  constexpr unsigned kReclaimThreads = 3;  // beside the keeper; their calls wait for round trips or for the device
  reclaimer_ = std::make_unique<Reclaimer>(
      dead_, *extents_, *index_, counters_, clock_,
      Reclaimer::Users{[this](const FreedPlace& freed) { return !checkpointer_->nobody_reads() && tree_->read().still_needed(freed); },
                       [this] { return !commits_.idle(); },
                       [this](const FreedPlace& freed) { return checkpointer_->holds_for_peers(freed); },
                       [this](ExtentId extent) { return extent.epoch < identity_.epoch && checkpointer_->holds_earlier_lives(); },
                       [this, kept_epoch](ExtentId extent) { return extent.epoch <= kept_epoch && extent.epoch < identity_.epoch; }},
      volume_->features().punch_hole, background_ ? kReclaimThreads : 0);
  accesses_ = std::make_unique<AccessTracker>(
      [this](ObjectId id) { return other_nodes_.successors_of(id); },
      options.prefetch ? options.prefetch_ahead_bytes : 0, options.memory_bytes / 2);
  options_.subscribe([this](const StoreOptions& now) {
    accesses_->set_ahead_bytes(now.prefetch ? now.prefetch_ahead_bytes : 0, now.memory_bytes / 2);
  });
  evictor_ = std::make_unique<Evictor>(clock_);
  std::vector<AccessListener*> listeners{evictor_.get()};
  if (shared_) listeners.push_back(&peer_leases_);
  if (shared_) lost_names_.emplace(clock_, *evictor_, counters_);
  if (shared_ && !read_only_) listeners.insert(listeners.end(), {&touches_, &*lost_names_});
  accesses_->set_listeners(std::move(listeners));
  space_.set_low_callback([this] { keeper_wakeup_.wake(); });
  space_waiters_.set_source([this] { return may_get_room(); });
  options_.subscribe([this](const StoreOptions& now) {
    evictor_->configure({.on = now.evict && !read_only_,
                         .lease_ms = static_cast<int64_t>(now.lease_ms),
                         .policy = now.policy,
                         .most_pinned_bytes = now.capacity_bytes / 2});
    peer_leases_.set_lease_ms(now.lease_ms);
    keeper_wakeup_.wake();
  });
  tree_ = std::make_unique<Tree>(Tree::Parts{*index_, clock_, *accesses_, space_, *record_space_, *discards_, dirty_, *pool_, background_, identity_.node, shared_, &peer_leases_});
  cache_.emplace(BodyCache::Parts{*pool_, *files_, *tree_, *accesses_, resumer_, *page_warmer_, counters_, background_});
  quarantine_.emplace(Quarantine::Parts{*tree_, commits_, *extents_, space_, counters_, [this](ObjectId id) { if (shared_ && !read_only_) touches_.damaged(id); }});
  record_waiters_.emplace(RecordWaiters::Parts{*record_space_, space_, space_waiters_, dirty_, resumer_, keeper_wakeup_, health_, upkeep_backoff_, clock_});
  dirty_.set_seal_ended([this] { urgent_->requeue_deferred(); });
  committer_.emplace(Committer::Parts{
      commits_, *journal_, *journal_room_, *extents_, resumer_, health_, counters_,
      {*tree_, *index_, *accesses_, dirty_, *changes_, space_, *record_space_, dead_, stamps_, unsaved_reads_},
      {*tree_, *index_, *cache_, dirty_, *changes_, space_, *record_space_, *record_waiters_, dead_, *discards_, unmarked_,
       [this](ObjectId id, uint64_t size_bytes) { evictor_->sized(id, size_bytes); }},
      [this] { return index_rebuild_->repair(*index_); }, fence_.get()});
  reader_.emplace(*extents_, counters_);
  unverified_.emplace(UnverifiedBodies::Parts{*index_, *tree_, *reader_, *quarantine_}, std::move(found.unverified));
  loader_.emplace(Loader::Parts{*volume_, *extents_, *tree_, *cache_, *file_policy_, *quarantine_, opener_, keeper_work_, counters_, clock_});
  backing_.emplace(BackingFiles::Parts{*volume_, *extents_, *tree_, *files_, *file_policy_, *accesses_, *unverified_, counters_, clock_,
                                       verify_ == Verify::kAlways});
  read_ahead_.emplace(ReadAhead::Parts{*accesses_, *tree_, *loader_, *extents_, *pool_, *files_, *file_policy_, *cache_, *file_mover_,
                                       *backing_, counters_, clock_, volume_->features().network});
  accesses_->set_kick([this] { read_ahead_->kick(); });
  reads_.emplace(ReadRequests::Parts{*volume_, *accesses_, *cache_, *loader_, *read_ahead_, opener_, resumer_, counters_, clock_});
  mapped_.emplace(MappedReads::Parts{*file_mover_, *file_policy_, *backing_, *read_ahead_, resumer_, background_});
  sealer_.emplace(Sealer::Parts{*volume_, *extents_, *reader_, *cache_, *tree_, *index_, *quarantine_, commits_, *changes_, space_, dead_,
                                options_, counters_, options.extent_bytes});
  scrubber_.emplace(Scrubber::Parts{*index_, *tree_, *reader_, *quarantine_, counters_, clock_, sealer_->memory_to_seal(nullptr),
                                    [this] { return counters_.opens + counters_.read_requests + counters_.write_requests; },
                                    [records = RecordScrub({*volume_, identity_, *index_, counters_,
                                                            [this] {
                                                              checkpointer_->replace_rotted();
                                                              keeper_wakeup_.wake();
                                                            }})](const std::function<bool()>& goes_on) { return records.run(goes_on); }});
  options_.subscribe([this](const StoreOptions& now) { scrubber_->set_rate(read_only_ ? 0 : now.scrub_bytes_per_s); });
  spiller_.emplace(Spiller::Parts{dirty_, *tree_, *changes_, *extents_, *pool_, refusals_, health_, counters_});
  relocator_.emplace(Relocator::Parts{*extents_, unmarked_, *tree_, *quarantine_, *changes_, space_, clock_});
  bulk_.emplace(BulkLane::Parts{dirty_, *tree_, *accesses_, *sealer_, *spiller_, *relocator_, commits_, refusals_, *pool_, *cache_, health_,
                                options_, clock_, background_});
  urgent_.emplace(UrgentLane::Parts{*sealer_, *relocator_, *extents_, commits_, refusals_, health_});
  in_place_.emplace(InPlaceChanges::Parts{*changes_, space_, dirty_, read_only_});
  writes_.emplace(WriteRequests::Parts{*volume_, *extents_, space_, *raw_space_, space_waiters_, *discards_, *changes_, dirty_, *cache_,
                                       *file_policy_, *waiting_bytes_, *loader_, *read_ahead_, *in_place_, refusals_, opener_, resumer_,
                                       counters_, options_,
                                       [this](const Object& object) { return other_nodes_.check_may_change(object); }});
  build_name_requests();
  drainer_.emplace(Drainer::Parts{*bulk_, *urgent_, *committer_});
  if (shared_)
    shared_capacity_.emplace(SharedCapacity::Parts{space_, *evictor_, space_waiters_, counters_, options_, clock_, running_clock_,
                                                   [this] { if (peers_) peers_->want_room(); }, [this] { keeper_->want_reclaim(); },
                                                   !read_only_ && care_ == Care::kNone});
  SharedCapacity* const shared = shared_capacity_ ? &*shared_capacity_ : nullptr;
  eviction_.emplace(Eviction::Parts{*evictor_, *tree_, *index_, space_, refusals_, gone_names_, counters_, options_, clock_,
                                    keeper_wakeup_, [this] { drainer_->journal_names(); }, [this] { drainer_->drain(/*for_room=*/true); },
                                    [this] { return has_peers(); }, read_only_, shared,
                                    [this] { return commits_.unsynced_bytes() > 0 && !health_.error(Health::Of::kUpkeep); }});
  if (!volume_->features().punch_hole && !read_only_)
    compactor_.emplace(Compactor::Parts{*tree_, *index_, dead_, space_, refusals_, *relocator_, *eviction_, counters_, clock_, options.extent_bytes});
  sweep_.emplace(OrphanSweep::Parts{*volume_, identity_, *extents_, *index_, dead_, orphans_, counters_, clock_,
                                    [this] { return checkpointer_->sync_point(); }, background_, kept_epoch});
  checkpointer_.emplace(Checkpointer::Parts{volume_, identity_, index_directory_, *index_, *index_rebuild_, *journal_, *journal_room_, *reserve_,
                                            *extents_, *committer_, *relocator_, *drainer_, *tree_, *accesses_, space_, dead_, *raw_space_, *record_space_,
                                            orphans_, *sweep_, *reclaimer_, *eviction_, health_, counters_, clock_, options_, next_number_},
                        Checkpointer::Found{found.checkpoint_bytes, found.journal_files, found.older_journals_bytes, found.judged_tail});
  watch_.emplace(VolumeWatch::Parts{*volume_, identity_, *extents_, *index_, space_, *raw_space_, dead_, *reserve_, *checkpointer_, refusals_, health_,
                                    dirty_, options_, clock_, [this](const SpaceInfo& backing) { return option_defaults(backing); }, read_only_, background_,
                                    !read_only_ && care_ == Care::kNone},
                 backing_seen);
  keeper_.emplace(Keeper::Parts{*checkpointer_, *eviction_, *sweep_, *watch_, *drainer_, keeper_work_, keeper_wakeup_, space_waiters_, *record_waiters_,
                                dead_, space_, *index_, *index_rebuild_, *tree_, stale_opens_, commits_, unsaved_reads_, *unverified_, *sealer_, *read_ahead_, resumer_,
                                *cache_, *page_warmer_, *files_, *pool_, probes_, health_, upkeep_backoff_, counters_, clock_, shared, &running_clock_,
                                compactor_ ? &*compactor_ : nullptr});
  if (shared_) KVC_TRY(other_nodes_.follow());
  FirstRecords first({*index_, dead_, clock_, stamps_, counters_, [this](const Batch& batch) { return committer_->append(batch); }});
  const bool left_out = found.journals_lost || ((shared_ || care_ != Care::kNone) && found.peers_want_checkpoint);
  checkpoint_at_close_ = left_out || care_ == Care::kCollect || care_ == Care::kRetire;
  if (left_out || found.checkpoint_damaged || (care_ == Care::kTend && found.unclean)) checkpointer_->want_checkpoint();  // others wait for it
  if (shared_ && (care_ != Care::kNone || found.other_boot || found.tail_cut || left_out)) KVC_TRY(first.end_earlier(found.end, left_out));
  KVC_TRY(first.make_root());
  if (unclean_start_ || index_rebuilt_) KVC_TRY(first.drop_nameless());
  forget_reclaimed();
  if (care_ == Care::kRetire)
    KVC_TRY(first.remove_all_names([this] { return journal_room_->write([this] { return journal_->sync(); }); }));
  if (!read_only_) sweep_->count(unclean_start_ || found.judged_tail || index_rebuilt_);
  if (!read_only_) sweep_->cut_raw_files();
  find_quarantined(*index_, *tree_);
  space_.set_live(index_->totals().live_bytes);
  watch_->measure_all();
  if (peers_) peers_->begin_claim();
  if (compactor_) compactor_->keep_room();
  if (volume_->features().network) watch_->trim_reserve();  // to refill it may take megabytes of writes: left to the keeper
  else watch_->refill_reserve();
  health_.start();
  keeper_->begin();
  log::info("volume {} node {} epoch {}: {} objects, {} on the volume, ready after {} ms{}", volume_->root(),
            identity_.node, identity_.epoch, index_->totals().objects, format_size(space_.live_bytes()),
            (clock_.monotonic_ns() - started_ns) / 1'000'000, index_rebuilt_ ? " (index rebuilt)" : "");
  if (!background_) return {};
  index_->set_let_go_wanted([this] { keeper_->want_let_go(); });
  Status started = threads_.start();
  if (!started) static_cast<void>(close());  // the next start then finds a clean end
  return started;
}

// Without it a volume that others have filled could not be mounted to remove something. A life that tends or collects gives its RESERVE back where
// there is plenty of room: the room it takes until it ends is not to come on top of that.
void StoreImpl::find_room_to_begin(std::string_view holder) {
  constexpr uint64_t kPlentyTimes = 4;
  const auto backing = volume_->space();
  if (!backing) return;
  if (backing->available_bytes >= kStartBytes) {
    if (care_ != Care::kNone && backing->available_bytes / kPlentyTimes >= reserve_->held_bytes()) give_back_reserve();
  } else if (!reserve_->give(kStartBytes) && shared_) {
    give_back_reserves_of_others(*volume_, identity_, kStartBytes, holder);
  }
}

void StoreImpl::build_name_requests() {
  const auto may_change = [this](const Object& object) { return other_nodes_.check_may_change(object); };
  new_objects_.emplace(NewObjects::Parts{clock_, identity_.epoch, next_number_});
  room_for_records_.emplace(RoomForRecords::Parts{space_, space_waiters_, refusals_, counters_, [this] { return may_get_room(); }});
  versions_.emplace(NameVersions::Parts{*tree_, stale_opens_, *new_objects_, *room_for_records_, *record_space_, *changes_, *file_policy_, clock_, may_change});
  open_files_.emplace(OpenFiles::Parts{*tree_, *versions_, *accesses_, *extents_, space_, *discards_, *changes_, dirty_, *cache_, *file_policy_, *backing_,
                                       *in_place_, unsaved_reads_, *urgent_, counters_, options_, clock_, options_.current().read_times, read_only_});
  AttributeRequests::Known known{
      [this](const Object& object, bool pinned) { return evictor_->pin(object.id, object.is_directory(), pinned, object.size_bytes); },
      [this](ObjectId id) { return evictor_->is_pinned(id); },
      [this](const Tree::View& tree, const ObjectPtr& object, uint32_t thread_id, AttributeRequests::Facts& facts) {
        EvictGuard::describe(*evictor_, tree, object, thread_id, facts);
      },
      [this](ObjectId id) { return peers_ ? std::optional(peers_->node_of(id)) : std::nullopt; }};
  attributes_.emplace(AttributeRequests::Parts{*tree_, *open_files_, *writes_, *in_place_, *accesses_, *extents_, *room_for_records_, *record_space_,
                                               *changes_, dirty_, unsaved_reads_, clock_, may_change, std::move(known), read_only_});
  names_.emplace(NameRequests::Parts{*tree_, *versions_, *attributes_, *new_objects_, *room_for_records_, *accesses_, *changes_, dirty_,
                                     *file_policy_, refusals_, *urgent_, probes_, counters_, options_, clock_, read_only_});
  renames_.emplace(RenameRequests::Parts{*tree_, *writes_, *changes_, dirty_, *urgent_, probes_, options_, read_only_});
  lookups_.emplace(Lookups::Parts{*tree_, stale_opens_, *versions_, *new_objects_, *accesses_, *evictor_, peer_leases_, probes_, clock_});
}

// Has the keeper reclaim at once the space that the journals gave up and that was not reclaimed since.
void StoreImpl::forget_reclaimed() {
  const bool some = dead_.forget_reclaimed(*index_, volume_->features().punch_hole,
                                           [this](ExtentId id, PlaceKind kind) { return extents_->info(id, kind); });
  dead_.found_before(index_->position());
  if (some) keeper_->want_reclaim();
}

Result<SpaceInfo> StoreImpl::fill_in_options() {
  KVC_ASSIGN(SpaceInfo backing, volume_->space());
  KVC_TRY(options_.resolve(option_defaults(backing),
                           default_index_directory(volume_->root(), volume_->features().network, identity_.volume_uuid, identity_.node)));
  const StoreOptions options = options_.current();
  if (const CgroupLimit limit = cgroup_memory_limit(); options.memory_bytes > limit.bytes)
    log::warn("memory={} is more than the {} that this process may have ({}): the kernel would kill it before the option holds "
              "it back. Lower the option to a half of that, or raise the limit",
              format_size(options.memory_bytes), format_size(limit.bytes), limit.file);
  index_directory_ = options.index_directory;
  return backing;
}

OptionDefaults StoreImpl::option_defaults(const SpaceInfo& backing) const {
  return {.backing_bytes = backing.total_bytes,
          .memory_bytes = std::min(machine_memory_bytes(), cgroup_memory_limit().bytes),
          .network_volume = volume_->features().network};
}

// --- end ---

void StoreImpl::stop() {
  if (!threads_.run()) return;
  if (tree_->has_versions()) tree_->write().sweep_versions(/*all=*/true);
  std::promise<Status> done;
  auto answer = done.get_future();
  drain(true, [&](Status status) { done.set_value(std::move(status)); });
  drained_ = answer.get();
  threads_.stop();
}

// Removes files that no record names; called when everything has been journaled that will be. The objects that are left have no name, or
// are open and were not finished: their spill files and raw files are named by no record.
void StoreImpl::remove_unjournaled() {
  std::vector<std::pair<ExtentId, PlaceKind>> unused;
  tree_->write().for_each([&](const ObjectPtr& object) {
    const auto lock = object->lock();
    const Place& place = object->base.place;
    if (object->spill && place.extent != object->spill_extent) unused.emplace_back(object->spill_extent, PlaceKind::kSolo);
    if (object->raw_unjournaled && place.kind == PlaceKind::kRaw) unused.emplace_back(place.extent, PlaceKind::kRaw);
  });
  for (const auto& [extent, kind] : unused)
    if (Status status = extents_->remove(extent, kind); !status) log::warn("unused extent: {}", status.error().message);
  keeper_work_.run();  // the same for files that were closed a moment ago
}

// Gives this node's RESERVE back if another node keeps one: one stays on the volume, for a node that starts when others have filled it.
void StoreImpl::give_back_reserve() {
  const uint64_t held_bytes = reserve_->held_bytes();
  if (held_bytes == 0 || !shared_ || !others_keep_reserve(*volume_, identity_, held_bytes)) return;
  if (Status given = reserve_->give_back(); !given) log::warn("room that was kept for the journal: {}", given.error().message);
}

// Gives up room that is held for this node alone: the node has no use for it before its next life.
void StoreImpl::give_back_to_others() {
  constexpr uint64_t kIndexesPart = 256;  // of the capacity
  peers_->keep_indexes_within(care_ == Care::kNone ? options_.current().capacity_bytes / kIndexesPart : 0);
  if (!read_only_) give_back_reserve();
  checkpointer_->measure_overhead();
}

Status StoreImpl::close() {
  if (!index_ || !journal_) return {};
  stop();
  if (!drained_ && tree_->has_versions()) tree_->write().sweep_versions(/*all=*/true);
  if (!drained_) drain(true, [this](Status status) { drained_ = std::move(status); });
  constexpr int kMaxRounds = 100'000;
  for (int round = 0; round < kMaxRounds && !drained_; ++round) pump();
  if (drained_ && !*drained_ && !extents_->lost().empty()) {  // bodies that could not be synced move elsewhere first
    static_cast<void>(relocator_->move_all());
    drained_.reset();
    drain(true, [this](Status status) { drained_ = std::move(status); });
    for (int round = 0; round < kMaxRounds && !drained_; ++round) pump();
  }
  constexpr int kRounds = 8;  // for work that is left once everything is journaled
  for (int round = 0; round < kRounds && pump(); ++round) {
  }
  kill_point("drained");
  Status status = drained_.value_or(fail(Code::kIo, "the volume did not take everything"));
  bulk_->finish();
  urgent_->finish();
  extents_->remove_spares();
  // No client reads here any more. Space that is held for other nodes is given back by the next start, which is told where to look.
  checkpointer_->end_reading();
  keeper_->end_lingering(/*all=*/true);
  if (status && !read_only_) watch_->look_for_volume();
  if (status) status = checkpointer_->index_point();
  constexpr int kMostLooks = 3;  // at a pack of which a range died last
  for (int looks = 1; looks < kMostLooks && status && dead_.any(); ++looks) status = checkpointer_->index_point();
  if (status) remove_unjournaled();
  const bool long_journal = committer_->journal_bytes() > kFinalCheckpointBytes || checkpointer_->journal_files() > 8;
  if (status && (long_journal || checkpoint_at_close_)) status = checkpointer_->write_checkpoint();
  if (status) {
    // A last mark covers the records of the last steps: the next start trusts everything.
    status = checkpointer_->sync_point();
    if (status) checkpointer_->note_leftovers({}, /*ends=*/true);
    if (status) status = index_->commit();
    if (status) status = index_->close_clean();
  }
  if (!status && index_->damaged()) {  // the journals do not depend on it: they hold everything that was accepted
    log::warn("{}; the next start builds the index anew", status.error().message);
    status = checkpointer_->sync_point();
  }
  if (peers_) peers_->stop();
  volume_->drain();  // loads that were under way
  cache_->clear();
  file_mover_->clear();
  dirty_.clear();
  tree_->clear();
  if (peers_) {
    if (status) give_back_to_others();
    peers_->end_claim();
  }
  if (!status) log::error("closing {}: {}", volume_->root(), status.error().message);
  index_.reset();
  journal_.reset();
  extents_.reset();
  lock_.reset();
  return status;
}

StoreImpl::~StoreImpl() {
  if (threads_.run()) threads_.stop();
  volume_->drain();
  if (read_ahead_) read_ahead_->give_up();
}

}  // namespace kvcachefs
