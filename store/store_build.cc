// Builds the rooms of a store, in the groups and in the order that StoreImpl::start() tells.
#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/descriptors.h"
#include "store/recovery/recovery.h"
#include "store/store_impl.h"
#include "store/upkeep/evict_guard.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kMaxOpenExtents = 512;
}  // namespace

Status StoreImpl::build_memory() {
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
  return {};
}

void StoreImpl::build_extents(uint32_t kept_epoch) {
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
}

void StoreImpl::build_accesses() {
  const StoreOptions options = options_.current();
  accesses_ = std::make_unique<AccessTracker>(
      [this](ObjectId id) { return other_nodes_.successors_of(id); },
      options.prefetch ? options.prefetch_ahead_bytes : 0, options.memory_bytes / 2);
  options_.subscribe([this](const StoreOptions& now) {
    accesses_->set_ahead_bytes(now.prefetch ? now.prefetch_ahead_bytes : 0, now.memory_bytes / 2);
  });
  evictor_ = std::make_unique<Evictor>(clock_);
  std::vector<AccessListener*> listeners{evictor_.get()};
  if (shared_) listeners.push_back(&peer_leases_);
  if (shared_) lost_names_.emplace(clock_, *evictor_, counters_, [this] { accesses_->catch_up(); });
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
}

void StoreImpl::build_tree() {
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
}

void StoreImpl::build_reads(Recovered& found) {
  reader_.emplace(*extents_, counters_);
  unverified_.emplace(UnverifiedBodies::Parts{*index_, *tree_, *reader_, *quarantine_}, std::move(found.unverified));
  loader_.emplace(Loader::Parts{*volume_, *extents_, *tree_, *cache_, *file_policy_, *quarantine_, opener_, keeper_work_, counters_, clock_,
                               [this](std::move_only_function<void()> then) { peers_ ? peers_->catch_up().read(std::move(then)) : then(); }});
  backing_.emplace(BackingFiles::Parts{*volume_, *extents_, *tree_, *files_, *file_policy_, *accesses_, *unverified_, counters_, clock_,
                                       verify_ == Verify::kAlways});
  read_ahead_.emplace(ReadAhead::Parts{*accesses_, *tree_, *loader_, *extents_, *pool_, *files_, *file_policy_, *cache_, *file_mover_,
                                       *backing_, counters_, clock_, volume_->features().network});
  accesses_->set_kick([this] { read_ahead_->kick(); });
  reads_.emplace(ReadRequests::Parts{*volume_, *accesses_, *cache_, *loader_, *read_ahead_, opener_, resumer_, counters_, clock_});
  mapped_.emplace(MappedReads::Parts{*file_mover_, *file_policy_, *backing_, *read_ahead_, resumer_, background_});
}

void StoreImpl::build_writeback() {
  const StoreOptions options = options_.current();
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
  bulk_.emplace(BulkLane::Parts{dirty_, *tree_, *changes_, *accesses_, *sealer_, *spiller_, *relocator_, commits_, refusals_, *pool_, *cache_, health_,
                                options_, clock_, background_});
  urgent_.emplace(UrgentLane::Parts{*sealer_, *relocator_, *extents_, commits_, refusals_, health_});
}

void StoreImpl::build_requests() {
  in_place_.emplace(InPlaceChanges::Parts{*changes_, space_, dirty_, read_only_});
  writes_.emplace(WriteRequests::Parts{*volume_, *extents_, space_, *raw_space_, space_waiters_, *discards_, *changes_, dirty_, *cache_,
                                       *file_policy_, *waiting_bytes_, *loader_, *read_ahead_, *in_place_, refusals_, opener_, resumer_,
                                       counters_, options_,
                                       [this](const Object& object) { return other_nodes_.check_may_change(object); }});
  build_name_requests();
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
  names_.emplace(NameRequests::Parts{*tree_, *versions_, *attributes_, *new_objects_, *room_for_records_, *record_space_, *accesses_, *changes_, dirty_,
                                     *file_policy_, refusals_, *urgent_, probes_, counters_, options_, clock_, read_only_});
  renames_.emplace(RenameRequests::Parts{*tree_, *writes_, *changes_, dirty_, *urgent_, space_waiters_, probes_, options_, read_only_});
  lookups_.emplace(Lookups::Parts{*tree_, stale_opens_, *versions_, *new_objects_, *accesses_, *evictor_, peer_leases_, probes_, clock_});
}

void StoreImpl::build_upkeep(const Recovered& found, uint32_t kept_epoch, const SpaceInfo& backing_seen) {
  const StoreOptions options = options_.current();
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
}

}  // namespace kvcachefs
