// Start and end: the volume's header, the node and its lock, a new epoch, the order in which everything else begins
// (store_recover.cc, store_threads.cc), and what is left to do when all of it ends.
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
#include "store/base/node_name.h"
#include "store/journal/make_volume.h"
#include "store/store_impl.h"
#include "store/store_load.h"
#include "store/store_seal.h"
#include "store/store_start.h"

namespace kvcachefs {

namespace {

constexpr const char* kFirstMountLock = ".kvcachefs-first-mount";
constexpr uint64_t kJournalFileBytes = 64 * kMiB;
constexpr uint64_t kStartBytes = 4 * kMiB;  // of new files and directories, generously
constexpr uint64_t kFinalCheckpointBytes = 8 * kMiB;  // of journal: below, the next start replays it as fast

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

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

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

StoreImpl::StoreImpl(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock)
    : volume_(std::move(volume)), clock_(clock), stamps_(clock), options_(std::move(options)) {
  const StoreOptions given = options_.current();
  background_ = given.background;
  read_only_ = given.read_only;
  read_times_ = given.read_times;
  verify_ = given.verify;
  held_loads_ = std::make_unique<HeldLoads>();
  resumer_.waiters().set_rules({
      .has_room_without_reads =
          [this](uint64_t lacks_bytes) {
            const uint64_t held = pool_->held_bytes(), loading = std::min(held, loading_bytes_.load(std::memory_order_relaxed));
            return held - loading + lacks_bytes + left_to_others(MemoryFor::kWriter) <= pool_->limit_bytes();
          },
      .nothing_moves = [this] { return pool_->dirty_bytes() == 0 && loading_bytes_.load(std::memory_order_relaxed) == 0; },
  });
}

Result<std::unique_ptr<Store>> open_store(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock,
                                          std::string_view holder) {
  KVC_TRY(check_store_options(options));
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
  KVC_TRY(settle_identity());
  auto lock = volume_->lock(fmt::format("nodes/{}/LOCK", identity_.node));
  if (!lock) {
    if (lock.error().code == Code::kBusy) lock.error().message = "volume " + volume_->root() + " is in use: " + lock.error().message;
    return std::unexpected(std::move(lock).error());
  }
  lock_ = std::move(*lock);
  reserve_ = std::make_unique<Reserve>(volume_, fmt::format("nodes/{}/RESERVE", identity_.node));
  // Else a volume that others have filled could not be mounted to remove something.
  if (auto backing = volume_->space(); backing && backing->available_bytes < kStartBytes && !read_only_) reserve_->give(kStartBytes);
  KVC_TRY(lock_->describe(holder));
  KVC_TRY(fill_in_options());
  const StoreOptions options = options_.current();
  raw_space_ = std::make_unique<RawSpace>(space_, volume_->features().blocks_lag);
  record_space_ = std::make_unique<RecordSpace>(space_, options.memory_bytes);
  pool_ = std::make_unique<MemoryPool>(options.memory_bytes, kSealingBytes);
  files_ = std::make_unique<MemoryFiles>(*pool_);
  file_policy_.emplace(MemoryFilePolicy::Parts{*files_, options_, clock_});
  file_mover_.emplace(FileMover::Parts{*pool_, *files_, *file_policy_, clock_, counters_, verify_ != Verify::kAlways,
                                       [this](uint64_t bytes) { return recover_memory(bytes, MemoryFor::kReader); }});
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
  extent_bytes_ = options.extent_bytes;

  KVC_ASSIGN(auto epochs, list_epochs(*volume_, identity_.node));
  previous_epoch_ = epochs.empty() ? 0 : epochs.back();
  identity_.epoch = previous_epoch_;
  KVC_TRY(open_index());
  index_rebuild_ = std::make_unique<IndexRebuild>(*volume_, identity_, clock_);
  index_rebuild_->allow(!judged_tail_);
  KVC_TRY(start_epoch());
  extents_ = std::make_unique<Extents>(volume_, identity_, kMaxOpenExtents);
  extents_->start_at(1);
  discards_.emplace(Discards::Parts{space_, keeper_work_, *extents_});
  constexpr unsigned kReclaimThreads = 3;  // and the keeper; of calls that wait for round trips or for the device
  reclaimer_ = std::make_unique<Reclaimer>(
      dead_, *extents_, *index_, counters_, clock_,
      Reclaimer::Users{[this](const FreedPlace& freed) { return still_needed(freed); }, [this] { return !commits_.idle(); }},
      volume_->features().punch_hole, background_ ? kReclaimThreads : 0);
  accesses_ = std::make_unique<AccessTracker>(
      [this](ObjectId id) -> std::optional<SuccessorsRecord> {
        auto row = index_->find_successors(id);
        return row ? std::move(*row) : std::nullopt;
      },
      options.prefetch ? options.prefetch_ahead_bytes : 0, options.memory_bytes / 2);
  options_.subscribe([this](const StoreOptions& now) {
    accesses_->set_ahead_bytes(now.prefetch ? now.prefetch_ahead_bytes : 0, now.memory_bytes / 2);
  });
  accesses_->set_kick([this] { kick_prefetch(); });
  evictor_ = std::make_unique<Evictor>(clock_);
  accesses_->set_listener(evictor_.get());
  space_.set_low_callback([this] { keeper_wakeup_.wake(); });
  space_waiters_.set_source([this] { return may_evict(); });
  options_.subscribe([this](const StoreOptions& now) {
    evictor_->configure({.on = now.evict && !read_only_,
                         .lease_ms = static_cast<int64_t>(now.lease_ms),
                         .policy = now.policy,
                         .most_pinned_bytes = now.capacity_bytes / 2});
    keeper_wakeup_.wake();
  });
  tree_ = std::make_unique<Tree>(Tree::Parts{*index_, clock_, *accesses_, space_, *record_space_, *discards_, dirty_, *pool_, background_});
  bulk_target_ = std::make_unique<PackTarget>();
  urgent_target_ = std::make_unique<PackTarget>();
  KVC_TRY(make_root());
  KVC_TRY(drop_nameless());
  forget_reclaimed();
  find_quarantined();
  space_.set_live(index_->totals().live_bytes);
  refresh_space();
  if (!volume_->features().network) refill_reserve();  // there it may be megabytes to write: the keeper's
  health_.start();
  last_index_point_ns_ = clock_.monotonic_ns();
  log::info("volume {} node {} epoch {}: {} objects, {} on the volume, ready after {} ms{}", volume_->root(),
            identity_.node, identity_.epoch, index_->totals().objects, format_size(space_.live_bytes()),
            (clock_.monotonic_ns() - started_ns) / 1'000'000, index_rebuilt_ ? " (index rebuilt)" : "");
  if (background_) start_threads();
  return {};
}

// --- volume and node ---

// Whose first mounts come at once make one volume between them, with one node: the others find it made.
Result<std::unique_ptr<VolumeLock>> StoreImpl::lock_first_mount() {
  constexpr int kMostTries = 1000;
  for (int i = 0;; ++i) {
    auto lock = volume_->lock(kFirstMountLock);
    if (lock || lock.error().code != Code::kBusy || i == kMostTries) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Status StoreImpl::settle_identity() {
  std::unique_ptr<VolumeLock> first;
  if (auto nodes = volume_->list("nodes"); !nodes || nodes->empty()) {
    KVC_TRY(check_may_be_volume(*volume_));
    KVC_ASSIGN(first, lock_first_mount());  // its file stays: who waits for it has opened this one, not another of that name
  }
  return take_node();
}

Status StoreImpl::take_node() {
  KVC_ASSIGN(const VolumeHeader header, open_or_make_volume(*volume_, stamps_.next()));
  identity_.volume_uuid = header.uuid;
  KVC_TRY(choose_node());
  KVC_TRY(volume_->make_directories("nodes/" + identity_.node));
  if (read_only_) return {};
  KVC_TRY(volume_->sync_directory(""));  // also when they were there: a first start may have been cut short before this
  return volume_->sync_directory("nodes");
}

Status StoreImpl::choose_node() {
  const std::string node = options_.current().node;
  identity_.node = node.empty() ? node_name_of_host() : node;
  auto nodes = volume_->list("nodes");
  if (!nodes) {
    if (nodes.error().code == Code::kNotFound) return {};
    return std::unexpected(std::move(nodes).error());
  }
  std::string others;
  for (const DirectoryEntry& entry : *nodes) {
    if (entry.name == identity_.node) return {};
    others += (others.empty() ? "" : ", ") + entry.name;
  }
  if (others.empty()) return {};
  return fail(Code::kPermission,
              fmt::format("volume {} belongs to node {}, this is node '{}': mount with -o node={} to take it over",
                          volume_->root(), others, identity_.node, others.substr(0, others.find(','))));
}

Status StoreImpl::fill_in_options() {
  KVC_ASSIGN(SpaceInfo backing, volume_->space());
  backing_seen_ = backing;
  KVC_TRY(options_.resolve(option_defaults(backing), volume_->features().network
                                                         ? fmt::format("/var/lib/kvcachefs/{}/{}", hex(identity_.volume_uuid), identity_.node)
                                                         : fmt::format("{}/nodes/{}/index", volume_->root(), identity_.node)));
  const StoreOptions options = options_.current();
  if (const CgroupLimit limit = cgroup_memory_limit(); options.memory_bytes > limit.bytes)
    log::warn("memory={} is more than the {} that this process may have ({}): the kernel would kill it before the option holds "
              "it back. Lower the option to a half of that, or raise the limit",
              format_size(options.memory_bytes), format_size(limit.bytes), limit.file);
  index_directory_ = options.index_directory;
  return {};
}

OptionDefaults StoreImpl::option_defaults(const SpaceInfo& backing) const {
  return {.backing_bytes = backing.total_bytes,
          .memory_bytes = std::min(machine_memory_bytes(), cgroup_memory_limit().bytes),
          .network_volume = volume_->features().network};
}

// --- a new epoch ---

Status StoreImpl::start_epoch() {
  for (uint32_t epoch = previous_epoch_ + 1; epoch <= kMaxEpoch; ++epoch) {
    if (index_->highest_number(epoch) > 0 || index_->highest_extent(epoch) > 0) continue;  // ids are never given out twice
    Status made = with_reserve([&] { return volume_->make_directory(epoch_directory(identity_.node, epoch)); });
    if (!made && made.error().code == Code::kExists) continue;
    KVC_TRY(std::move(made));
    identity_.epoch = epoch;
    KVC_TRY(volume_->sync_directory("nodes/" + identity_.node));
    KVC_ASSIGN(journal_, with_reserve([this] { return JournalWriter::create(volume_, identity_, boot_id(), kJournalFileBytes, form_of_journal(options_.current(), volume_->features())); }));
    return {};
  }
  return fail(Code::kTooBig, fmt::format("node {} of volume {} has used all {} epochs: copy its content to a new volume",
                                         identity_.node, volume_->root(), kMaxEpoch));
}

Status StoreImpl::make_root() {
  KVC_ASSIGN(auto there, index_->find_object(kRootId));
  if (there) return {};
  PutRecord root;
  root.object.id = kRootId;
  Attributes& attributes = root.object.attributes;
  attributes.mode = S_IFDIR | 0755;
  attributes.uid = getuid();
  attributes.gid = getgid();
  attributes.btime_ns = clock_.realtime_ns();
  attributes.atime_ns = attributes.mtime_ns = attributes.ctime_ns = attributes.btime_ns;
  Batch batch;
  batch.stamp = stamps_.next();
  batch.records.emplace_back(std::move(root));
  KVC_ASSIGN(JournalPosition after, append_to_journal(batch));
  KVC_ASSIGN(auto freed, index_->apply(batch, after));
  return {};
}

// --- end ---

void StoreImpl::stop() {
  if (threads_.empty()) return;
  if (tree_->has_versions()) tree_->write().sweep_versions(/*all=*/true);
  std::promise<Status> done;
  auto answer = done.get_future();
  drain(true, [&](Status status) { done.set_value(std::move(status)); });
  drained_ = answer.get();
  stop_threads();
}

// Everything is journaled that is ever going to be. What is left has no name, or was not finished by who still has it open:
// files that took its bytes, because they did not fit into memory or are 1:1 with it, are named by no record.
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
  keeper_work_.run();  // the same for what was closed a moment ago
}

Status StoreImpl::close() {
  if (!index_ || !journal_) return {};
  stop();
  if (!drained_ && tree_->has_versions()) tree_->write().sweep_versions(/*all=*/true);
  if (!drained_) drain(true, [this](Status status) { drained_ = std::move(status); });
  constexpr int kMaxRounds = 100'000;
  for (int round = 0; round < kMaxRounds && !drained_; ++round) pump();
  if (drained_ && !*drained_ && !extents_->lost().empty()) {  // what could not be synced goes elsewhere first
    static_cast<void>(move_all_from_lost());
    drained_.reset();
    drain(true, [this](Status status) { drained_ = std::move(status); });
    for (int round = 0; round < kMaxRounds && !drained_; ++round) pump();
  }
  constexpr int kRounds = 8;  // what is left to do once everything is journaled
  for (int round = 0; round < kRounds && pump(); ++round) {
  }
  kill_point("drained");
  Status status = drained_.value_or(fail(Code::kIo, "the volume did not take everything"));
  for (PackTarget* target : {bulk_target_.get(), urgent_target_.get()}) {
    close_target(*target);
    cut_closed(*target);
    dead_.packs_closed(std::exchange(target->closed, {}));
  }
  extents_->remove_spares();
  // Nobody reads any more, and what is not given back now never is: the next start hears nothing of it.
  end_lingering(/*all=*/true);
  nobody_reads_ = true;
  if (status) status = index_point();
  constexpr int kMostLooks = 3;  // at a pack, of which a range died last
  for (int looks = 1; looks < kMostLooks && status && dead_.any(); ++looks) status = index_point();
  if (status) remove_unjournaled();
  if (status && (journal_bytes_.load() > kFinalCheckpointBytes || journal_files_ > 8)) status = write_checkpoint();
  if (status) {
    // What the last steps journaled is covered by a mark of its own: the next start trusts everything.
    status = sync_point();
    if (status) orphans_.note_leftovers(*index_, {});
    if (status) status = index_->commit();
    if (status) status = index_->close_clean();
  }
  if (!status && index_->damaged()) {  // of which the journals are independent: what was accepted is in them
    log::warn("{}; the next start builds the index anew", status.error().message);
    status = sync_point();
  }
  volume_->drain();  // loads that were under way
  clean_bodies_.clear();
  file_mover_->clear();
  dirty_.clear();
  tree_->clear();
  if (!status) log::error("closing {}: {}", volume_->root(), status.error().message);
  index_.reset();
  journal_.reset();
  extents_.reset();
  lock_.reset();
  return status;
}

StoreImpl::~StoreImpl() {
  if (!threads_.empty()) stop_threads();
  volume_->drain();
  arrived_.clear();  // before what they count in
  held_loads_.reset();
}

}  // namespace kvcachefs
