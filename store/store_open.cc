// Start and end: the volume's header, the node and its lock, the index (opened, or rebuilt from checkpoint and journals),
// what a crash left, a new epoch, the threads. Reads what was added since the last checkpoint, never every chunk.
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/extent/pack_gaps.h"
#include "store/journal/volume_file.h"
#include "store/store_impl.h"
#include "store/store_seal.h"

namespace kvcachefs {

namespace {

constexpr const char* kFirstMountLock = ".kvcachefs-first-mount";
constexpr size_t kMaxOpenExtents = 512;
constexpr uint64_t kJournalFileBytes = 64 * kMiB;
constexpr uint64_t kFinalCheckpointBytes = 8 * kMiB;  // of journal: below, the next start replays it as fast

std::string read_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Identifies one start of this machine's kernel: bodies written since survive a crash of the daemon without a sync.
std::string boot_id() { return read_line("/proc/sys/kernel/random/boot_id"); }

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  std::string clean;
  for (const char* c = name; *c != 0; ++c)
    clean += std::isalnum(static_cast<unsigned char>(*c)) || *c == '-' || *c == '_' || *c == '.' ? *c : '-';
  return clean.empty() || clean[0] == '.' ? "localhost" : clean;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

uint64_t machine_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

StoreImpl::StoreImpl(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock)
    : volume_(std::move(volume)), clock_(clock), stamps_(clock), options_(std::move(options)) {
  background_ = options_.background;
  read_only_ = options_.read_only;
  verify_ = options_.verify;
}

Result<std::unique_ptr<Store>> open_store(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock,
                                          std::string_view holder) {
  KVC_TRY(check_store_options(options));
  auto store = std::make_unique<StoreImpl>(std::move(volume), std::move(options), clock);
  KVC_TRY(store->start(holder));
  return store;
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
  KVC_TRY(lock_->describe(holder));
  KVC_TRY(fill_in_options());
  pool_ = std::make_unique<MemoryPool>(options_.memory_bytes);
  files_ = std::make_unique<MemoryFiles>(*pool_);
  pool_->set_give_spares([this](uint64_t bytes) { return files_->drop_spares(bytes); });
  pool_->set_available_callback([this] { tell_memory_came_back(); });
  if (pool_->try_reserve(kUnitBytes).bytes() == 0)
    return fail_errno(ENOMEM, "memory for chunks: see the limit on this process's address space (RLIMIT_AS, LimitAS=) and "
                              "vm.overcommit_memory with vm.overcommit_ratio");
  apply_live_options();
  extent_bytes_ = options_.extent_bytes;

  KVC_ASSIGN(auto epochs, list_epochs(*volume_, identity_.node));
  previous_epoch_ = epochs.empty() ? 0 : epochs.back();
  identity_.epoch = previous_epoch_;
  KVC_TRY(open_index());
  KVC_TRY(start_epoch());
  extents_ = std::make_unique<Extents>(volume_, identity_, kMaxOpenExtents);
  extents_->start_at(1);
  names_ = std::make_unique<Namespace>(*index_);
  prefetcher_ = std::make_unique<Prefetcher>(*index_, options_.prefetch ? options_.prefetch_ahead_bytes : 0,
                                             options_.memory_bytes / 2);
  prefetcher_->set_kick([this] { kick_prefetch(); });
  bulk_target_ = std::make_unique<PackTarget>();
  urgent_target_ = std::make_unique<PackTarget>();
  KVC_TRY(make_root());
  KVC_TRY(drop_nameless());
  forget_reclaimed();
  find_quarantined();
  space_.set_live(index_->totals().live_bytes);
  refresh_space();
  state_since_ns_ = clock_.realtime_ns();
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
    KVC_TRY(check_may_be_volume());
    KVC_ASSIGN(first, lock_first_mount());
  }
  Status settled = take_node();
  // Not needed any more: whoever waits for it finds a volume with a node.
  if (first)
    if (Status status = volume_->remove_file(kFirstMountLock); !status && status.error().code != Code::kNotFound)
      log::warn("{}", status.error().message);
  return settled;
}

Status StoreImpl::take_node() {
  KVC_TRY(open_volume_file());
  KVC_TRY(choose_node());
  KVC_TRY(volume_->make_directories("nodes/" + identity_.node));
  if (read_only_) return {};
  KVC_TRY(volume_->sync_directory(""));  // also when they were there: a first start may have been cut short before this
  return volume_->sync_directory("nodes");
}

// Nothing is left in a directory that is another's.
Status StoreImpl::check_may_be_volume() {
  KVC_ASSIGN(auto entries, volume_->list(""));
  const auto is_header = [](const DirectoryEntry& entry) { return entry.name == kVolumeFileName; };
  if (std::any_of(entries.begin(), entries.end(), is_header)) return {};
  for (const DirectoryEntry& entry : entries)
    if (entry.name != "lost+found" && !entry.name.starts_with(".kvcachefs") &&
        entry.name != std::string(kVolumeFileName) + ".tmp")  // a first start that was cut short
      return fail(Code::kExists,
                  fmt::format("{} is not a kvcachefs volume and not empty (it holds '{}'): give an empty or new directory",
                              volume_->root(), entry.name));
  return {};
}

Status StoreImpl::open_volume_file() {
  auto content = read_file(*volume_, kVolumeFileName, kVolumeFileBytes);
  if (content) {
    auto header = decode_volume_file(*content);
    if (!header) return std::unexpected(std::move(header).error().at("volume " + volume_->root()));
    identity_.volume_uuid = header->uuid;
    return {};
  }
  if (content.error().code != Code::kNotFound) return std::unexpected(std::move(content).error());
  KVC_TRY(check_may_be_volume());  // nodes without a header: what it was is lost
  VolumeHeader header;
  if (getrandom(header.uuid.data(), header.uuid.size(), 0) != static_cast<ssize_t>(header.uuid.size()))
    return fail(Code::kIo, "no random bytes for the id of a new volume");
  header.created_stamp = stamps_.next();
  KVC_TRY(write_file_atomically(*volume_, kVolumeFileName, encode_volume_file(header)));
  identity_.volume_uuid = header.uuid;
  log::info("initialised a new volume in {}", volume_->root());
  return {};
}

Status StoreImpl::choose_node() {
  identity_.node = options_.node.empty() ? host_name() : options_.node;
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
  resolve_defaults(options_, backing);
  if (options_.index_directory.empty()) {
    options_.index_directory =
        volume_->features().network
            ? fmt::format("/var/lib/kvcachefs/{}/{}", hex(identity_.volume_uuid), identity_.node)
            : fmt::format("{}/nodes/{}/index", volume_->root(), identity_.node);
  }
  index_directory_ = options_.index_directory;
  return check_store_options(options_);
}

void StoreImpl::resolve_defaults(StoreOptions& options, const SpaceInfo& backing) const {
  if (options.capacity_bytes == 0) options.capacity_bytes = backing.total_bytes / 100 * options.capacity_percent;
  if (options.keep_free_bytes == 0) options.keep_free_bytes = backing.total_bytes / 100 * options.keep_free_percent;
  if (options.memory_bytes == 0) options.memory_bytes = std::min(machine_memory_bytes() / 4, 32 * kGiB);
  if (options.pack_below_bytes == 0)
    options.pack_below_bytes = volume_->features().network || !options.passthrough ? 32 * kMiB : 4 * kMiB;
  options.pack_below_bytes = std::min(options.pack_below_bytes, options.extent_bytes - kBlockBytes);
}

// --- index and recovery ---

Status StoreImpl::open_index() {
  std::error_code ignored;
  std::filesystem::create_directories(index_directory_, ignored);
  const IndexIdentity who{identity_.volume_uuid, identity_.node};
  Index::Found found{};
  std::string why;
  KVC_ASSIGN(index_, Index::open(index_directory_, who, &found, &why));
  if (!why.empty()) log::warn("index {}: {}", index_directory_, why);
  // The journals alone do not tell: what was begun after their last record left none.
  unclean_start_ = found == Index::Found::kOpened && !index_->was_closed_cleanly();

  KVC_ASSIGN(auto journals, list_journals(*volume_, identity_));
  std::vector<std::string> problems;
  KVC_ASSIGN(auto checkpoint, find_checkpoint(*volume_, identity_, problems));
  for (const std::string& problem : problems) log::error("checkpoint: {}", problem);
  records_lost_ = !problems.empty();
  if (checkpoint) {
    auto file = volume_->info(checkpoint_path(identity_.node, checkpoint->epoch, checkpoint->seq));
    checkpoint_bytes_ = file ? file->size_bytes : checkpoint->records * 64;
  }
  for (const JournalFileInfo& file : journals) older_journals_bytes_ += file.size_bytes;
  journal_files_ = journals.size() + 1;

  if (found == Index::Found::kOpened && !index_fits(journals, checkpoint)) {
    log::warn("index {} does not fit the journals (it is older, or of another time): rebuilding it", index_directory_);
    index_.reset();
    KVC_TRY(remove_index(index_directory_));
    KVC_ASSIGN(index_, Index::open(index_directory_, who, &found, &why));
  }
  take_leftovers();
  const bool anything = !journals.empty() || checkpoint;
  if (found == Index::Found::kFresh && anything) {
    index_rebuilt_ = true;
    log::info("rebuilding the index from {} journal files{}", journals.size(), checkpoint ? " and a checkpoint" : "");
    if (checkpoint) KVC_TRY(load_checkpoint(*checkpoint));
  }
  return replay(journals);
}

// Do the journals go on where the index ends?
bool StoreImpl::index_fits(const std::vector<JournalFileInfo>& journals,
                           const std::optional<CheckpointInfo>& checkpoint) const {
  const JournalPosition at = index_->position();
  if (checkpoint && at < checkpoint->header.covers) return false;  // the journals in between may be gone
  if (checkpoint && at == checkpoint->header.covers) return true;
  for (const JournalFileInfo& file : journals)
    if (file.epoch == at.epoch && file.seq == at.seq) return file.size_bytes >= at.offset;
  return at == JournalPosition{} && !checkpoint;
}

namespace {
bool is_possible(const Place& place) {
  return place.length <= kMaxSealedBytes && place.offset <= kMaxFileBytes && place.offset % kBlockBytes == 0;
}

// What no daemon writes, but a damaged or hostile volume may hold behind good checksums: to read it would go past what is there.
bool is_possible(const ObjectRecord& object) {
  const Body& body = object.body;
  const PlaceKind kind = body.place.kind;
  if (!is_possible(body.place) || body.size_bytes > (kind == PlaceKind::kRaw ? kMaxFileBytes : kMaxSealedBytes)) return false;
  if (!S_ISREG(object.attributes.mode))
    return kind == PlaceKind::kNone && body.inline_bytes.size() == (S_ISLNK(object.attributes.mode) ? body.size_bytes : 0);
  if (body.quarantined || kind == PlaceKind::kRaw) return true;  // not read, or held to its file
  if (kind == PlaceKind::kNone) return body.size_bytes == 0;
  if (kind == PlaceKind::kInline && body.inline_bytes.size() != body.size_bytes) return false;
  return body.place.length == body.size_bytes && body.checksums.size() == div_ceil(body.size_bytes, kUnitBytes);
}

bool is_possible(const Record& record) {
  if (const auto* put = std::get_if<PutRecord>(&record)) return is_possible(put->object);
  const auto* move = std::get_if<MoveRecord>(&record);
  if (move == nullptr) return true;
  return is_possible(move->place) && (move->place.kind == PlaceKind::kPacked || move->place.kind == PlaceKind::kSolo);
}
}  // namespace

// Left out, as what a damaged frame said.
bool StoreImpl::is_refused(const Record& record) {
  if (is_possible(record)) return false;
  const auto* put = std::get_if<PutRecord>(&record);
  const ObjectId id = put != nullptr ? put->object.id : std::get<MoveRecord>(record).id;
  log::error("a record of object {} cannot be right and is left out", id.value);
  records_lost_ = true;
  return true;
}

Status StoreImpl::load_checkpoint(const CheckpointInfo& checkpoint) {
  KVC_TRY(index_->begin_load());
  KVC_TRY(read_checkpoint(*volume_, identity_, checkpoint, [&](Record&& record) {
    return is_refused(record) ? Status() : index_->load(std::move(record));
  }));
  stamps_.observe(checkpoint.header.stamp);
  return index_->finish_load(checkpoint.header.covers, checkpoint.header.stamp);
}

// What replay left out so far, because bodies that were never synced turned out not to be whole.
struct StoreImpl::LeftOut {
  std::unordered_set<ObjectId> objects;  // no version of them is whole
  std::vector<NameRecord> names;         // theirs: given after all when a later version is whole

  // `name` is spoken for anew. Whether an object left out had it.
  bool forget(ObjectId parent, std::string_view name) {
    return std::erase_if(names, [&](const NameRecord& each) { return each.parent == parent && each.name == name; }) > 0;
  }
  bool has_name(ObjectId child) const {
    return std::any_of(names.begin(), names.end(), [&](const NameRecord& each) { return each.child == child; });
  }
};

Status StoreImpl::replay(const std::vector<JournalFileInfo>& journals) {
  // Epochs of another boot of this machine: what they did not sync may be lost or torn.
  std::unordered_set<uint32_t> other_boot;
  for (const JournalFileInfo& file : journals)
    if (file.boot_id != boot_id()) other_boot.insert(file.epoch);
  extents_ = std::make_unique<Extents>(volume_, identity_, kMaxOpenExtents);  // for reading only
  bool unsynced_seen = false;
  LeftOut left_out;
  auto result = replay_journals(*volume_, identity_, index_->position(),
                                [&](const Batch& batch, JournalPosition after, bool synced) {
                                  unsynced_seen |= !synced;
                                  return apply_replayed(batch, after, !synced && other_boot.contains(after.epoch), left_out);
                                });
  if (!result) return std::unexpected(std::move(result).error());
  unclean_start_ |= unsynced_seen || result->torn_tails > 0;
  judged_tail_ |= unclean_start_;  // also what was trusted unread: after a reboot it would be judged anew
  counters_.replayed_batches = result->batches;
  packs_unswept_ |= unclean_start_ || index_rebuilt_;
  records_lost_ |= result->damaged_files > 0;
  pack_sweep_over_ = records_lost_;
  // What a daemon that died wrote is trusted, for the page cache has it. From here on it is synced as well: neither the index,
  // nor who asks for a sync, nor who gives back what it replaced, looks at the files of an earlier epoch again.
  if (unclean_start_ || index_rebuilt_) KVC_TRY(volume_->sync_everything());
  for (const std::string& problem : result->problems) log::warn("journal: {}", problem);
  if (result->batches > 0) {
    log::info("replayed {} batches, {} records, {} of journal{}", result->batches, result->records,
              format_size(result->bytes), !other_boot.empty() && unsynced_seen ? " after an unclean stop of the host" : "");
    note_leftovers({});
    KVC_TRY(index_->commit());
  }
  extents_.reset();
  return {};
}

// After an unclean stop of the host, a body that was not synced is read before it is trusted; one that fails is absent: its
// record is left out, and so are the names of an object without any whole version, so that what was there before stays.
Status StoreImpl::apply_replayed(const Batch& batch, JournalPosition after, bool verify, LeftOut& left_out) {
  stamps_.observe(batch.stamp);
  judged_tail_ |= verify;
  Batch trusted;
  trusted.stamp = batch.stamp;
  std::unordered_set<ObjectId> put;
  for (const Record& record : batch.records) {
    if (const auto* body = std::get_if<PutRecord>(&record)) {
      const ObjectId id = body->object.id;
      const Wholeness found = is_refused(record) ? Wholeness::kAbsent : verify ? wholeness(body->object) : Wholeness::kWhole;
      if (found == Wholeness::kUnknown) unverified_.insert(id);
      if (found == Wholeness::kWhole) unverified_.erase(id);  // an earlier version of it
      if (found == Wholeness::kAbsent) {
        counters_.dropped_bodies.fetch_add(1);
        KVC_ASSIGN(auto earlier, index_->find_object_summary(id));
        if (!earlier && !put.contains(id)) left_out.objects.insert(id);
        continue;
      }
      put.insert(id);
      trusted.records.push_back(record);
      if (left_out.objects.erase(id) == 0) continue;
      for (const NameRecord& name : left_out.names)
        if (name.child == id) trusted.records.emplace_back(name);
      std::erase_if(left_out.names, [&](const NameRecord& name) { return name.child == id; });
      continue;
    }
    if (const auto* name = std::get_if<NameRecord>(&record)) {
      left_out.forget(name->parent, name->name);
      if (left_out.objects.contains(name->child)) {
        left_out.names.push_back(*name);
        continue;
      }
    } else if (const auto* gone = std::get_if<UnnameRecord>(&record)) {
      // Unlinked: what the object left out had replaced must not come back. Not so if it has another name (a rename).
      if (left_out.forget(gone->parent, gone->name) && !left_out.has_name(gone->child)) {
        KVC_ASSIGN(auto before, index_->find_name(gone->parent, gone->name));
        if (before) trusted.records.emplace_back(UnnameRecord{gone->parent, gone->name, before->child});
        continue;
      }
    } else if (is_refused(record)) {
      continue;
    }
    trusted.records.push_back(record);
  }
  KVC_ASSIGN(auto freed, index_->apply(trusted, after));
  std::lock_guard lock(keeper_mutex_);
  for (FreedPlace& place : freed) {
    freed_bytes_ += align_up(place.place.length, kBlockBytes);
    freed_.push_back(std::move(place));
  }
  space_.set_dead(freed_bytes_);
  return {};
}

// Absent for sure: what is left out is given back soon, for good. A volume that does not answer says nothing of that: the body
// stays then, is read with its checksums only, and is looked at again.
StoreImpl::Wholeness StoreImpl::wholeness(const ObjectRecord& object) {
  const Body& body = object.body;
  if (body.place.kind == PlaceKind::kNone || body.place.kind == PlaceKind::kInline || body.quarantined) return Wholeness::kWhole;
  const auto judge = [&](const Error& error) {
    const bool absent = error.code == Code::kCorrupt || error.code == Code::kNotFound;
    log::warn("object {} {}: {}", object.id.value,
              absent ? "was not on the medium when the machine stopped" : "could not be verified, and is kept", error.message);
    return absent ? Wholeness::kAbsent : Wholeness::kUnknown;
  };
  if (body.place.kind == PlaceKind::kRaw) {
    auto info = volume_->info(extent_path(identity_.node, body.place.extent, PlaceKind::kRaw));
    return info ? Wholeness::kWhole : judge(info.error());
  }
  counters_.verified_bodies.fetch_add(1);
  Snapshot stored;
  stored.size_bytes = body.size_bytes;
  stored.base = body;
  stored.base_valid_bytes = body.size_bytes;
  if (body.checksums.size() < div_ceil(body.size_bytes, kUnitBytes)) return Wholeness::kAbsent;
  for (size_t index = 0; index < div_ceil(body.size_bytes, kUnitBytes); ++index)
    if (auto block = fetch_unit(stored, index); !block) return judge(block.error());
  return Wholeness::kWhole;
}

// What a start could not verify, once more: the next start trusts what this one's checkpoint holds.
void StoreImpl::verify_again() {
  std::vector<ObjectId> ids;
  {
    std::lock_guard lock(unverified_mutex_);
    ids.assign(unverified_.begin(), unverified_.end());
  }
  for (ObjectId id : ids) {
    auto record = index_->find_object(id);
    if (!record) continue;
    const Wholeness found = *record ? wholeness(**record) : Wholeness::kWhole;
    if (found == Wholeness::kUnknown) continue;
    auto object = found == Wholeness::kAbsent ? get(id) : Result<ObjectPtr>(nullptr);
    if (object && *object) quarantine(*object, (*record)->body.version, "it was not on the medium when the machine stopped");
    std::lock_guard lock(unverified_mutex_);
    unverified_.erase(id);
  }
}

bool StoreImpl::is_unverified(ObjectId id) {
  std::lock_guard lock(unverified_mutex_);
  return unverified_.contains(id);
}

// --- a new epoch ---

Status StoreImpl::start_epoch() {
  for (uint32_t epoch = previous_epoch_ + 1; epoch <= kMaxEpoch; ++epoch) {
    Status made = volume_->make_directory(epoch_directory(identity_.node, epoch));
    if (!made && made.error().code == Code::kExists) continue;
    KVC_TRY(std::move(made));
    identity_.epoch = epoch;
    KVC_TRY(volume_->sync_directory("nodes/" + identity_.node));
    KVC_ASSIGN(journal_, JournalWriter::create(volume_, identity_, boot_id(), kJournalFileBytes));
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
  KVC_ASSIGN(JournalPosition after, journal_->append(batch));
  KVC_ASSIGN(auto freed, index_->apply(batch, after));
  return {};
}

// Objects whose name a crash took: named and unnamed in one batch, which drops them and frees their places.
Status StoreImpl::drop_nameless() {
  if (!unclean_start_ && !index_rebuilt_) return {};
  KVC_ASSIGN(auto nameless, index_->scan_nameless());
  std::erase(nameless, kRootId);
  if (nameless.empty()) return {};
  constexpr size_t kMostAtOnce = 10'000;  // of a journaled batch, which has a largest size
  for (size_t from = 0; from < nameless.size(); from += kMostAtOnce)
    KVC_TRY(drop_nameless(std::span(nameless).subspan(from, std::min(kMostAtOnce, nameless.size() - from))));
  counters_.swept_files.fetch_add(nameless.size());
  return {};
}

Status StoreImpl::drop_nameless(std::span<const ObjectId> nameless) {
  Batch batch;
  batch.stamp = stamps_.next();
  for (ObjectId id : nameless) {
    const std::string name = fmt::format(".kvcachefs-nameless-{}", id.value);
    batch.records.emplace_back(NameRecord{kRootId, name, id});
    batch.records.emplace_back(UnnameRecord{kRootId, name, id});
  }
  KVC_ASSIGN(JournalPosition after, journal_->append(batch));
  KVC_ASSIGN(auto freed, index_->apply(batch, after));
  std::lock_guard lock(keeper_mutex_);
  for (FreedPlace& place : freed) {
    freed_bytes_ += align_up(place.place.length, kBlockBytes);
    freed_.push_back(std::move(place));
  }
  return {};
}

// The journals tell what was given up, not what was reclaimed since: only what still has blocks counts, and is looked at
// again. One stat per extent.
void StoreImpl::forget_reclaimed() {
  std::unordered_map<ExtentId, uint64_t> dead;
  for (const FreedPlace& freed : freed_) dead[freed.place.extent] += align_up(freed.place.length, kBlockBytes);
  std::unordered_set<ExtentId> gone;
  uint64_t dead_bytes = 0;
  for (const FreedPlace& freed : freed_) {
    const Place& place = freed.place;
    auto bytes = dead.find(place.extent);
    if (bytes == dead.end()) continue;  // seen
    auto info = volume_->info(extent_path(identity_.node, place.extent, place.kind));
    if (!info && info.error().code == Code::kNotFound) {
      gone.insert(place.extent);
    } else {
      uint64_t allocated = info ? info->allocated_bytes : UINT64_MAX;
      auto usage = index_->find_extent(place.extent);
      if (usage && *usage) allocated -= std::min(allocated, (*usage)->live_bytes);
      dead_bytes += std::min(bytes->second, allocated);
    }
    dead.erase(bytes);
  }
  std::erase_if(freed_, [&](const FreedPlace& freed) { return gone.contains(freed.place.extent); });
  if (!volume_->features().punch_hole) find_unpunched();
  std::lock_guard lock(keeper_mutex_);
  freed_bytes_ = dead_bytes;
  space_.set_dead(freed_bytes_ + unpunched_bytes_);
  const auto is_raw = [](const FreedPlace& freed) { return freed.place.kind == PlaceKind::kRaw; };  // of no known length
  keeper_kicked_ = reclaim_wanted_ = freed_bytes_ > 0 || std::any_of(freed_.begin(), freed_.end(), is_raw);
}

// A volume that cannot punch keeps the dead ranges of a pack until all of it is dead, over any number of lives. They count as
// dead, but for those that are to be looked at again. One stat per pack.
void StoreImpl::find_unpunched() {
  std::unordered_map<ExtentId, uint64_t> in_hand;
  for (const FreedPlace& freed : freed_) in_hand[freed.place.extent] += align_up(freed.place.length, kBlockBytes);
  std::vector<ExtentId> packs;
  Status status = index_->scan_extents([&](ExtentId id, const ExtentUsage& usage) {
    if (usage.kind == PlaceKind::kPacked) packs.push_back(id);
    return true;
  });
  if (!status) log::error("index: {}", status.error().message);
  for (ExtentId id : packs) {
    auto usage = index_->find_extent(id);  // the scan sees what is committed only
    if (!usage || !*usage) continue;
    auto info = volume_->info(extent_path(identity_.node, id, PlaceKind::kPacked));
    if (!info) continue;
    uint64_t bytes = pack_surplus_bytes(info->allocated_bytes, (*usage)->live_bytes, (*usage)->bodies);
    if (auto dead = in_hand.find(id); dead != in_hand.end()) bytes -= std::min(bytes, dead->second);
    if (bytes == 0) continue;
    unpunched_[id] = bytes;
    unpunched_bytes_ += bytes;
  }
}

void StoreImpl::find_quarantined() {
  if (index_->totals().quarantined == 0) return;
  Status status = index_->scan_objects([&](ObjectRecord&& row) {
    if (row.body.quarantined) quarantined_.insert(row.id);
    return true;
  });
  if (!status) log::error("index: {}", status.error().message);
  quarantined_count_ = quarantined_.size();
}

// Journals, checkpoint and index, without a look at the volume but one: at the index, wherever that is.
void StoreImpl::measure_overhead() {
  uint64_t bytes = checkpoint_bytes_ + older_journals_bytes_ + journal_bytes_.load(std::memory_order_relaxed);
  struct stat data {};
  if (::stat((index_directory_ + "/data.mdb").c_str(), &data) == 0 && !volume_->features().network)
    bytes += static_cast<uint64_t>(data.st_blocks) * 512;
  space_.set_overhead(bytes);
}

// --- threads ---

void StoreImpl::start_threads() {
  committer_runs_ = true;
  threads_.emplace_back([this] { bulk_loop(); });
  threads_.emplace_back([this] {
    while (true) {
      {
        std::unique_lock lock(urgent_mutex_);
        urgent_ready_.wait(lock, [&] { return stopping_ || !urgent_.empty(); });
        if (stopping_ && urgent_.empty()) return;
      }
      urgent_step();
    }
  });
  committer_ = std::thread([this] {
    while (true) {
      {
        std::unique_lock lock(commit_mutex_);
        commit_ready_.wait(lock, [&] { return committer_stopping_ || !commit_queue_.empty(); });
        if (commit_queue_.empty()) return;
      }
      commit_step();
    }
  });
  threads_.emplace_back([this] { keeper_loop(); });
  threads_.emplace_back([this] { resumer_loop(); });
  threads_.emplace_back([this] { prefetch_loop(); });
  files_->expect_warmer();
  threads_.emplace_back([this] { warmer_loop(); });
  threads_.emplace_back([this] { mover_loop(); });
  for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { kernel_ahead_loop(); });
}

void StoreImpl::bulk_loop() {
  while (true) {
    {
      std::unique_lock lock(bulk_mutex_);
      bulk_ready_.wait(lock, [&] { return stopping_ || bulk_has_work_; });
      if (stopping_) return;
      const auto interval = std::chrono::milliseconds(flush_interval_ms_.load());
      bulk_ready_.wait_for(lock, interval, [&] { return stopping_ || bulk_hurry_; });
      if (stopping_) return;
    }
    // Under pressure at once again, as long as it helps; else there is time until the next interval.
    bool helped = bulk_step(false);
    while (helped && !stopping_ && (memory_pressure() || waiting_count_.load() > 0)) helped = bulk_step(false);
    if (!helped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// RAM to have ready ahead of need.
uint64_t StoreImpl::warm_bytes() const {
  constexpr uint64_t kMostBytes = 512 * kMiB;
  return std::min(kMostBytes, pool_->limit_bytes() / 4);
}

void StoreImpl::keeper_loop() {
  while (true) {
    {
      std::unique_lock lock(keeper_mutex_);
      keeper_ready_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_ || keeper_kicked_; });
      if (stopping_) return;
      keeper_kicked_ = false;  // before the step: who asks during it, perhaps after its round of making room, wants another
    }
    keeper_step(false);
    trim_clean_objects();
    // Not before half of what lay ready was taken: a restore that finds enough is not disturbed.
    if (pool_->mapped_bytes() > pool_->used_bytes() + warm_bytes() / 2 && !files_->wants_spares(warm_bytes() / 2)) continue;
    kick_warmer();
  }
}

void StoreImpl::kick_warmer() {
  {
    std::lock_guard lock(warmer_mutex_);
    warmer_kicked_ = true;
  }
  warmer_ready_.notify_one();
}

// Clears pages before anybody waits for them: the first touch of a huge page takes a millisecond, and twenty where a host has
// to back it first.
void StoreImpl::warmer_loop() {
  // Behind everybody else: it may keep a processor busy for seconds. (Not SCHED_IDLE: it takes the pool's lock now and then.)
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  index_->keep_in_memory();
  while (true) {
    {
      std::unique_lock lock(warmer_mutex_);
      warmer_ready_.wait(lock, [&] { return stopping_ || warmer_kicked_; });
      warmer_kicked_ = false;
      if (stopping_) return;
    }
    const uint64_t half = warm_bytes() / 2;
    while (!stopping_ && (files_->prepare_ahead(half, half) || pool_->prepare_ahead(warm_bytes()))) {
    }
  }
}

void StoreImpl::mover_loop() {
  while (true) {
    {
      std::unique_lock lock(mover_mutex_);
      mover_ready_.wait(lock, [&] { return stopping_ || !to_move_.empty(); });
      if (stopping_) return;
    }
    move_into_files();
  }
}

void StoreImpl::resumer_loop() {
  while (true) {
    {
      std::unique_lock lock(waiting_mutex_);
      const auto woken = [&] { return stopping_ || memory_came_back_ || !answers_.empty(); };
      if (waiting_.empty())
        waiting_ready_.wait(lock, [&] { return stopping_ || !answers_.empty() || (memory_came_back_ && !waiting_.empty()); });
      else
        waiting_ready_.wait_for(lock, std::chrono::milliseconds(20), woken);
      if (stopping_) return;
      memory_came_back_ = false;
    }
    give_answers();
    resume_waiting();
    if (waiting_count_.load() > 0) kick_bulk(true);
  }
}

void StoreImpl::stop_threads() {
  stopping_ = true;
  for (auto [mutex, ready] : {std::pair{&bulk_mutex_, &bulk_ready_}, std::pair{&urgent_mutex_, &urgent_ready_},
                              std::pair{&keeper_mutex_, &keeper_ready_},
                              std::pair{&waiting_mutex_, &waiting_ready_}, std::pair{&prefetch_mutex_, &prefetch_ready_},
                              std::pair{&warmer_mutex_, &warmer_ready_}, std::pair{&mover_mutex_, &mover_ready_},
                              std::pair{&kernel_ahead_mutex_, &kernel_ahead_ready_}}) {
    std::lock_guard lock(*mutex);
    ready->notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  // The committer last: the others may still wait for it.
  {
    std::lock_guard lock(commit_mutex_);
    committer_stopping_ = true;
  }
  commit_ready_.notify_all();
  if (committer_.joinable()) committer_.join();
  committer_runs_ = false;
  volume_->drain();
  answer_waiting();
  answer_unfinished();
  give_answers();
}

// Who waits for a seal or for room when the threads are gone: the session that their answers go to ends next.
void StoreImpl::answer_unfinished() {
  constexpr int kMostRounds = 1000;
  for (int round = 0; round < kMostRounds && (urgent_step() || commit_step()); ++round) commit_step();
  std::deque<std::pair<uint64_t, std::move_only_function<void()>>> waiting;
  {
    std::lock_guard lock(keeper_mutex_);
    waiting.swap(waiting_for_room_);
  }
  waiting_for_room_count_.fetch_sub(waiting.size());
  for (auto& [round, retry] : waiting) retry();  // once: nobody makes room any more
  volume_->drain();
  answer_waiting();  // who got room may have wanted memory then
}

// Requests that wait for memory get it now, for nobody else takes any. What they read has come before anything is taken down.
void StoreImpl::answer_waiting() {
  constexpr int kMostPauses = 1000;  // then somebody holds what they need for ever
  for (int pauses = 0; waiting_count_.load() > 0 && pauses < kMostPauses;) {
    if (!resume_waiting()) {
      ++pauses;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    volume_->drain();
  }
}

bool StoreImpl::pump() {
  bool any = resume_waiting();
  any |= bulk_step(false);
  any |= urgent_step();
  any |= commit_step();
  any |= keeper_step(false);
  if (!stopping_) {
    any |= prefetch_step();
    any |= move_into_files();
  }
  return any;
}

// --- end ---

void StoreImpl::stop() {
  if (threads_.empty()) return;
  if (has_versions_) sweep_versions(/*all=*/true);
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
  {
    std::unique_lock names(names_mutex_);
    for (const auto& [id, object] : table_) {
      std::lock_guard lock(object->mutex);
      const Place& place = object->base.place;
      if (object->spill && place.extent != object->spill_extent) unused.emplace_back(object->spill_extent, PlaceKind::kSolo);
      if (object->raw_unjournaled && place.kind == PlaceKind::kRaw) unused.emplace_back(place.extent, PlaceKind::kRaw);
    }
  }
  for (const auto& [extent, kind] : unused)
    if (Status status = extents_->remove(extent, kind); !status) log::warn("unused extent: {}", status.error().message);
  std::deque<std::move_only_function<void()>> work;  // the same for what was closed a moment ago
  {
    std::lock_guard lock(keeper_mutex_);
    work.swap(keeper_work_);
  }
  for (auto& item : work) item();
}

Status StoreImpl::close() {
  if (!index_ || !journal_) return {};
  stop();
  if (!drained_ && has_versions_) sweep_versions(/*all=*/true);
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
    note_closed(std::exchange(target->closed, {}));
  }
  // Nobody reads any more, and what is not given back now never is: the next start hears nothing of it.
  end_lingering(/*all=*/true);
  nobody_reads_ = true;
  if (status) status = index_point();
  constexpr int kMostLooks = 3;  // at a pack, of which a range died last
  for (int looks = 1; looks < kMostLooks && status && dead_is_left(); ++looks) status = index_point();
  if (status) remove_unjournaled();
  if (status && (journal_bytes_.load() > kFinalCheckpointBytes || journal_files_ > 8)) status = write_checkpoint();
  if (status) {
    // What the last steps journaled is covered by a mark of its own: the next start trusts everything.
    status = sync_point();
    if (status) note_leftovers({});
    if (status) status = index_->commit();
    if (status) status = index_->close_clean();
  }
  volume_->drain();  // loads that were under way
  lru_.clear();
  lru_where_.clear();
  to_move_.clear();
  shared_places_.clear();
  dirty_.clear();
  dirty_attributes_.clear();
  lingering_.clear();
  kept_for_rename_.clear();
  table_.clear();
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
}

}  // namespace kvcachefs
