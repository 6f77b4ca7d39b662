// Start and end of a store: takes the node's lock, runs recovery/, has the other rooms built from the result (store_build.cc); and at the end closes all of it.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <future>

#include <fmt/format.h>

#include "store/base/cgroup.h"
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

namespace kvcachefs {

namespace {

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

// The one order of a start. A step needs what the steps before it have set; no room works before the threads begin, last of all, in the
// order of StoreThreads::start(). The rooms are destroyed in the order of StoreRooms, whatever order they are built in.
Status StoreImpl::start(std::string_view holder) {
  const int64_t started_ns = clock_.monotonic_ns();
  NodeStart node(volume_, stamps_);
  KVC_TRY(take_node(node, holder));                             // no other daemon has the node from here on
  KVC_ASSIGN(const SpaceInfo backing_seen, fill_in_options());  // by the size of the file system and the id of the volume
  KVC_TRY(build_memory());                                      // of the size in the options; recovery verifies bodies in it
  KVC_ASSIGN(Recovered found, recover_node(node));              // sets the index: all that the journals tell
  // Recovery may have found that records are lost, and noted it.
  KVC_ASSIGN(const uint32_t kept_epoch, epochs_with_lost_records(*volume_, identity_.node));
  KVC_TRY(begin_epoch(node, found));                            // behind every epoch that recovery found: the journal takes records
  build_extents(kept_epoch);                                    // of this epoch
  build_accesses();
  build_tree();                                                 // over the index; with the cache, and the committer over the journal
  build_reads(found);
  build_writeback();                                            // the sealer reads, the lanes seal and commit
  build_requests();
  build_upkeep(found, kept_epoch, backing_seen);                // the keeper drives everything above
  if (shared_) KVC_TRY(other_nodes_.follow());
  KVC_TRY(write_first_records(found));                          // by the committer; about peers, so these are followed by now
  begin_upkeep(found);                                          // what is dead, live and left over, with the first records applied
  log::info("volume {} node {} epoch {}: {} objects, {} on the volume, ready after {} ms{}", volume_->root(),
            identity_.node, identity_.epoch, index_->totals().objects, format_size(space_.live_bytes()),
            (clock_.monotonic_ns() - started_ns) / 1'000'000, index_rebuilt_ ? " (index rebuilt)" : "");
  if (!background_) return {};
  index_->set_let_go_wanted([this] { keeper_->want_let_go(); });
  Status started = threads_.start();
  if (!started) static_cast<void>(close());  // the next start then finds a clean end
  return started;
}

// Finds the volume and the node, locks the node, and makes room for the first files.
Status StoreImpl::take_node(NodeStart& node, std::string_view holder) {
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
  return lock_->describe(holder);
}

Result<Recovered> StoreImpl::recover_node(NodeStart& node) {
  KVC_ASSIGN(identity_.epoch, node.last_epoch(identity_));
  KVC_ASSIGN(Recovered found, recover({volume_, identity_, index_directory_, stamps_, *pool_, counters_, dead_, orphans_, [this](uint32_t last_epoch) {
                                            return journal_room_->write([&] { return note_lost_records(*volume_, identity_.node, last_epoch); });
                                          }}));
  index_ = std::move(found.index);
  index_->limit_kept(std::clamp(options_.current().memory_bytes / 2, 32 * kMiB, 128 * kMiB));
  index_rebuilt_ = found.index_rebuilt;
  unclean_start_ = found.unclean;
  index_rebuild_ = std::make_unique<IndexRebuild>(*volume_, identity_, clock_);
  index_rebuild_->allow(!found.judged_tail);
  return found;
}

Status StoreImpl::begin_epoch(NodeStart& node, const Recovered& found) {
  KVC_ASSIGN(NodeStart::Epoch epoch, node.begin_epoch(identity_, found.last_epoch, *index_, form_of_journal(options_.current(), volume_->features()),
                                                      [this](const auto& attempt) { return journal_room_->write(attempt); }));
  identity_.epoch = epoch.number;
  journal_ = std::move(epoch.journal);
  if (shared_) fence_ = std::make_unique<NodeFence>(volume_, identity_, static_cast<int64_t>(options_.current().fence_after_ms) * 1'000'000);
  return {};
}

// Journals what no life before this one could: the root of a new volume, the ends of earlier epochs, the removal of what nobody can reach.
Status StoreImpl::write_first_records(const Recovered& found) {
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
  return {};
}

// Measures the volume and tells the keeper what earlier lives left to it.
void StoreImpl::begin_upkeep(const Recovered& found) {
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
  record_waiters_->stop();  // calls that wait keep objects of the Tree
  record_waiters_->resume();
  resumer_.give_answers();
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
