// RAM -> volume. A lane takes snapshots of finished bodies, gives each its place, writes them in large aligned pieces,
// hashes while the writes are under way, and hands the result to the committer. Two lanes: bulk and urgent.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/store_impl.h"
#include "store/store_seal.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kWriteBytes = 4 * kMiB;         // one request to the volume
constexpr uint64_t kInFlightBytes = 32 * kMiB;     // of a lane
constexpr size_t kMaxPieces = 512;                 // iovecs of one request (IOV_MAX is 1024)
constexpr uint64_t kBatchBytes = 256 * kMiB;       // sealed before the journal hears of it
constexpr size_t kBatchBodies = 8192;
constexpr int kMostFailedCommits = 50;             // 100 ms apart (bulk_step()), before a drain is told
constexpr int64_t kQuietNs = 1'000'000'000;        // a body open for writing is sealed when left alone this long
alignas(4096) constexpr std::array<std::byte, kUnitBytes> kZeros{};

std::span<std::byte> zeros(uint64_t bytes) { return {const_cast<std::byte*>(kZeros.data()), bytes}; }

}  // namespace

// One body on its way.
struct StoreImpl::SealPlan {
  Snapshot snapshot;
  Body body;
  FilePtr file;       // where it goes; null: nothing to write
  ExtentId extent;
  ObjectId shared_with;
  Status status;
  bool has_its_size = false;  // of a solo file: it needs no cut
  bool base_lost = false;  // what it was made of cannot be read, and never will be
};

// Collects pieces that lie next to each other in a file into large requests, several in flight. Used by one thread;
// completions come on the volume's.
class StoreImpl::BodyWriter {
 public:
  explicit BodyWriter(StoreImpl& store) : store_(store) {}
  ~BodyWriter() { wait_all(); }

  // `keep` holds the memory of the piece. Blocks while too much is in flight.
  void add(SealPlan* plan, const FilePtr& file, uint64_t offset, std::span<std::byte> piece, BlockPtr keep) {
    if (!(file == file_ && offset == offset_ + bytes_ && bytes_ + piece.size() <= kWriteBytes && pieces_.size() < kMaxPieces))
      send();
    if (pieces_.empty()) {
      file_ = file;
      offset_ = offset;
    }
    pieces_.push_back(piece);
    bytes_ += piece.size();
    if (keep) keep_.push_back(std::move(keep));
    if (plans_.empty() || plans_.back() != plan) plans_.push_back(plan);
  }

  void send() {
    if (pieces_.empty()) return;
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return in_flight_ == 0 || in_flight_ + bytes_ <= kInFlightBytes; });
      in_flight_ += bytes_;
    }
    IoRequest request;
    request.kind = IoRequest::Kind::kWrite;
    request.file = std::move(file_);
    request.offset = offset_;
    request.pieces = std::move(pieces_);
    request.urgent = false;
    request.done = [this, bytes = bytes_, keep = std::move(keep_), plans = std::move(plans_)](Result<size_t> result) mutable {
      keep.clear();
      std::lock_guard lock(mutex_);
      if (result)
        store_.counters_.write_volume_bytes.fetch_add(bytes, std::memory_order_relaxed);
      else
        for (SealPlan* plan : plans) plan->status = std::unexpected(result.error());
      in_flight_ -= bytes;
      room_.notify_all();
    };
    std::vector<IoRequest> requests;
    requests.push_back(std::move(request));
    file_.reset();
    pieces_.clear();
    keep_.clear();
    plans_.clear();
    bytes_ = 0;
    store_.volume_->submit(std::move(requests));
  }

  void wait_all() {
    send();
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return in_flight_ == 0; });
  }

 private:
  StoreImpl& store_;
  FilePtr file_;
  uint64_t offset_ = 0, bytes_ = 0;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<BlockPtr> keep_;
  std::vector<SealPlan*> plans_;
  std::mutex mutex_;  // a leaf: in_flight_ and the status of plans
  std::condition_variable room_;
  uint64_t in_flight_ = 0;
};

// --- choosing ---

void StoreImpl::kick_bulk(bool hurry) {
  if (!hurry && bulk_has_work_.load(std::memory_order_relaxed)) return;
  {
    std::lock_guard lock(bulk_mutex_);
    bulk_has_work_.store(true);
    if (hurry) bulk_hurry_ = true;
  }
  bulk_ready_.notify_one();
}

bool StoreImpl::memory_pressure() const { return pool_->used_bytes() * 4 > pool_->limit_bytes() * 3; }

bool StoreImpl::snapshot_for_seal(const ObjectPtr& object, Snapshot& snapshot) {
  std::lock_guard lock(object->mutex);
  if (object->sealing || !object->content_dirty() || !object->sealable()) return false;
  object->sealing = true;
  object->shrunk_to_bytes = UINT64_MAX;
  snapshot.object = object;
  snapshot.size_bytes = object->size_bytes;
  snapshot.units = object->units;
  snapshot.base = object->base;
  snapshot.base_valid_bytes = object->base_valid_bytes;
  snapshot.spill = object->spill;
  snapshot.spill_extent = object->spill_extent;
  snapshot.spill_written = object->spill_written;
  // Written into the spill file by this seal; also if it comes to nothing, and the file goes on as it is.
  if (object->spill)
    object->spill_written.assign(std::max(object->spill_written.size(), div_ceil(object->size_bytes, kUnitBytes)), true);
  snapshot.raw = object->raw != nullptr;
  snapshot.content_version = object->content_version;
  // Room for this body; what is written from now on makes another one.
  object->sealing_reserved_bytes = std::exchange(object->reserved_bytes, 0);
  return true;
}

std::vector<Snapshot> StoreImpl::choose_for_bulk(bool force, Remaining& remaining) {
  std::vector<ObjectPtr> candidates;
  {
    std::lock_guard lock(dirty_mutex_);
    candidates.swap(dirty_);
  }
  std::vector<ObjectPtr> kept;
  std::vector<std::pair<uint64_t, Snapshot>> chosen;
  std::vector<LayoutItem> layout;
  uint64_t bytes = 0;
  const int64_t now = clock_.monotonic_ns();
  {
    std::shared_lock names(names_mutex_);  // for nlink
    for (ObjectPtr& object : candidates) {
      bool ready = false;
      {
        std::lock_guard lock(object->mutex);
        if ((object->nlink == 0 && object->handles == 0) || !object->content_dirty()) {
          object->in_dirty_queue = false;
          continue;
        }
        const bool may_be = object->nlink > 0 && object->can_be_recorded() && object->sealable();
        ready = may_be && (force || object->raw || object->write_handles == 0 || now - object->last_write_ns > kQuietNs);
        // Time alone makes it ready. Whoever makes another so kicks the lane: an idle mount is not woken for what stays open.
        remaining.some |= may_be || object->sealing;
      }
      Snapshot snapshot;
      if (ready && (bytes >= kBatchBytes || chosen.size() >= kBatchBodies)) {
        remaining.at_once = true;
      } else if (ready && snapshot_for_seal(object, snapshot)) {
        if (!snapshot.raw) bytes += snapshot.size_bytes;
        const Prefetcher::Origin& origin = object->origin;
        layout.push_back({object->id, origin.key, origin.stem, origin.sequence, origin.arrival});
        chosen.emplace_back(0, std::move(snapshot));
      }
      kept.push_back(std::move(object));  // leaves the queue when it is found clean
    }
  }
  {
    std::lock_guard lock(dirty_mutex_);
    dirty_.insert(dirty_.end(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
  }
  // Bodies of one prefix next to each other, in prefix order, as far as probes and creates told it.
  std::unordered_map<ObjectId, uint64_t> rank;
  for (ObjectId id : prefetcher_->lay_out(layout)) rank.emplace(id, rank.size());
  for (auto& [position, snapshot] : chosen) {
    auto found = rank.find(snapshot.object->id);
    position = found == rank.end() ? UINT64_MAX : found->second;
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Snapshot> snapshots;
  for (auto& [sequence, snapshot] : chosen) snapshots.push_back(std::move(snapshot));
  return snapshots;
}

// --- placing ---

// A file that has its size before it is written: writes that make a file grow are done one after the other by ext4 and XFS,
// and 32 MiB in flight are one request at a time. Where holes are none it would be filled with zeros instead.
// False: it grows by the writes.
bool StoreImpl::size_ahead(File& file, uint64_t bytes) {
  if (!volume_->features().punch_hole) return false;
  const Status status = file.truncate(bytes);
  if (!status) log::debug("{}", status.error().message);
  return status.has_value();
}

void StoreImpl::close_target(PackTarget& target) {
  if (!target.file) return;
  target.closed.push_back(target.extent);
  target.uncut.emplace_back(std::exchange(target.file, nullptr), std::exchange(target.next_offset, 0));
  target.extent = {};
}

// Nothing of them is under way any more: the call would wait for it. Of those that stay uncut, after a crash, nothing is read
// behind the last body.
void StoreImpl::cut_closed(PackTarget& target) {
  for (auto& [file, end] : std::exchange(target.uncut, {}))
    if (Status status = file->truncate(end); !status) log::debug("{}", status.error().message);
}

Status StoreImpl::place_body(SealPlan& plan, PackTarget& target) {
  const Snapshot& snapshot = plan.snapshot;
  const uint64_t room = align_up(snapshot.size_bytes, kBlockBytes);
  Body& body = plan.body;
  body.size_bytes = snapshot.size_bytes;
  body.version = snapshot.base.version + 1;
  if (snapshot.raw) {
    body.place = snapshot.base.place;
    plan.extent = body.place.extent;
    return {};
  }
  if (snapshot.size_bytes == 0) return {};
  if (snapshot.spill && !extents_->is_lost(snapshot.spill_extent)) {
    body.place = {PlaceKind::kSolo, snapshot.spill_extent, 0, snapshot.size_bytes};
    plan.file = snapshot.spill;
    plan.extent = snapshot.spill_extent;
    return {};
  }
  if (snapshot.size_bytes < inline_below_bytes_.load(std::memory_order_relaxed)) {
    body.place = {PlaceKind::kInline, {}, 0, snapshot.size_bytes};
    return {};
  }
  if (snapshot.size_bytes >= pack_below_bytes_.load(std::memory_order_relaxed) || room > extent_bytes_ - kBlockBytes) {
    KVC_ASSIGN(Extents::Made made, extents_->make(PlaceKind::kSolo));
    plan.has_its_size = size_ahead(*made.file, room) && room == snapshot.size_bytes;
    body.place = {PlaceKind::kSolo, made.id, 0, snapshot.size_bytes};
    plan.file = std::move(made.file);
    plan.extent = made.id;
    return {};
  }
  if (target.file && (target.next_offset + room > extent_bytes_ || extents_->is_lost(target.extent))) close_target(target);
  if (!target.file) {
    KVC_ASSIGN(Extents::Made made, extents_->make(PlaceKind::kPacked));
    target.extent = made.id;
    target.file = std::move(made.file);
    target.next_offset = kBlockBytes;
    size_ahead(*target.file, extent_bytes_);
    std::lock_guard lock(keeper_mutex_);
    open_extents_.insert(target.extent);
  }
  body.place = {PlaceKind::kPacked, target.extent, target.next_offset, snapshot.size_bytes};
  plan.file = target.file;
  plan.extent = target.extent;
  target.next_offset += room;
  return {};
}

// --- writing ---

Status StoreImpl::write_body(SealPlan& plan, BodyWriter& writer) {
  const Snapshot& snapshot = plan.snapshot;
  Body& body = plan.body;
  if (body.place.kind == PlaceKind::kNone || body.place.kind == PlaceKind::kRaw) return {};
  const bool solo = body.place.kind == PlaceKind::kSolo;
  const size_t count = div_ceil(snapshot.size_bytes, kUnitBytes);
  body.checksums.clear();
  body.checksums.reserve(count);
  for (size_t index = 0; index < count; ++index) {
    const uint64_t length = unit_length(snapshot.size_bytes, index);
    const uint64_t padded = align_up(length, kBlockBytes);
    const uint64_t offset = body.place.offset + index * kUnitBytes;
    const Unit* unit = index < snapshot.units.size() ? &snapshot.units[index] : nullptr;
    BlockPtr block = unit != nullptr ? unit->block : nullptr;
    // Holes stay holes, unless the file has older bytes there.
    const bool sparse = solo && !(index < snapshot.spill_written.size() && snapshot.spill_written[index]);
    const bool spilled = unit != nullptr && unit->spilled && !unit->dirty;
    if (spilled && plan.file == snapshot.spill && unit->spill_bytes == length && unit->spill_valid_bytes == length) {
      body.checksums.push_back(unit->spill_checksum);  // it lies there already
      continue;
    }
    if (!block && ((unit != nullptr && unit->spilled) || index * kUnitBytes < snapshot.base_valid_bytes)) {
      KVC_ASSIGN(block, fetch_unit(snapshot, index));
    }
    if (!block) {
      body.checksums.push_back(checksum_of_zeros(length));
      if (body.place.kind == PlaceKind::kInline)
        body.inline_bytes.resize(body.inline_bytes.size() + length);
      else if (!sparse)
        writer.add(&plan, plan.file, offset, zeros(padded), nullptr);
      continue;
    }
    const uint64_t from_block = std::min<uint64_t>(padded, block->capacity_bytes());
    const auto stored = block->bytes().first(from_block);
    if (body.place.kind == PlaceKind::kInline) {
      body.inline_bytes.insert(body.inline_bytes.end(), stored.begin(), stored.begin() + static_cast<long>(std::min(length, from_block)));
      body.inline_bytes.resize(index * kUnitBytes + length);
    } else {
      writer.add(&plan, plan.file, offset, stored, block);
      if (from_block < padded && !sparse) writer.add(&plan, plan.file, offset + from_block, zeros(padded - from_block), nullptr);
    }
    if (from_block >= length) {
      body.checksums.push_back(checksum(stored.first(length)));
    } else {
      Hasher hasher;
      hasher.update(stored);
      hasher.update(zeros(length - from_block));
      body.checksums.push_back(hasher.digest());
    }
  }
  return {};
}

// A solo extent is cut to size: its last block was written whole, or it ends in a hole.
Status StoreImpl::finish_solo(SealPlan& plan) {
  if (plan.body.place.kind != PlaceKind::kSolo || !plan.file) return {};
  if (plan.has_its_size) return {};
  KVC_TRY(plan.file->truncate(plan.body.size_bytes));
  kill_point("solo-cut");
  return {};
}

// A rename put this object in place of another: when that has the same bytes its place is taken over.
bool StoreImpl::same_bytes_as_replaced(SealPlan& plan) {
  ObjectId replaced;
  {
    std::shared_lock names(names_mutex_);
    replaced = plan.snapshot.object->replaced;
    std::lock_guard lock(plan.snapshot.object->mutex);
    if (plan.snapshot.object->replaced_checked) return false;
  }
  if (!replaced.valid() || plan.snapshot.spill) return false;
  auto record = index_->find_object(replaced);
  if (!record || !*record) return false;
  const Body& old = (*record)->body;
  const PlaceKind kind = old.place.kind;
  if (old.size_bytes != plan.snapshot.size_bytes || old.quarantined || (kind != PlaceKind::kPacked && kind != PlaceKind::kSolo))
    return false;
  if (extents_->is_lost(old.place.extent)) return false;
  Snapshot stored;
  stored.size_bytes = old.size_bytes;
  stored.base = old;
  stored.base_valid_bytes = old.size_bytes;
  std::vector<uint64_t> checksums;
  for (size_t index = 0; index < div_ceil(old.size_bytes, kUnitBytes); ++index) {
    const uint64_t length = unit_length(old.size_bytes, index);
    const Unit* unit = index < plan.snapshot.units.size() ? &plan.snapshot.units[index] : nullptr;
    if (unit == nullptr || !unit->block || unit->block->capacity_bytes() < length) return false;
    if (checksum(unit->block->bytes().first(length)) != old.checksums.at(index)) return false;
    auto block = fetch_unit(stored, index);
    if (!block || std::memcmp((*block)->data(), unit->block->data(), length) != 0) return false;
    checksums.push_back(old.checksums[index]);
  }
  plan.body.size_bytes = old.size_bytes;
  plan.body.version = plan.snapshot.base.version + 1;
  plan.body.place = old.place;
  plan.body.checksums = std::move(checksums);
  plan.shared_with = replaced;
  counters_.deduplicated_bodies.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// object->mutex held. Who closed it meanwhile left to us what is done at the end of a body that did not fit.
void StoreImpl::end_seal(const ObjectPtr& object) {
  object->sealing = false;
  if (object->write_handles == 0) undo_what_did_not_fit(object, /*last_writer=*/true);
}

void StoreImpl::abandon_seal(const ObjectPtr& object) {
  {
    std::lock_guard lock(object->mutex);
    // The next try needs no more than the larger of the two.
    const uint64_t unused = std::exchange(object->sealing_reserved_bytes, 0);
    space_.release(std::min(unused, object->reserved_bytes));
    object->reserved_bytes = std::max(unused, object->reserved_bytes);
    end_seal(object);
    if (object->content_dirty() && !object->in_dirty_queue) {
      object->in_dirty_queue = true;
      std::lock_guard dirty_lock(dirty_mutex_);
      dirty_.push_back(object);
    }
  }
  kick_bulk();
  requeue_deferred();
}

void StoreImpl::give_back(ObjectId object, const Place& place) {
  if (place.kind != PlaceKind::kPacked && place.kind != PlaceKind::kSolo) return;
  std::lock_guard lock(keeper_mutex_);
  freed_.push_back({object, place});
  freed_bytes_ += align_up(place.length, kBlockBytes);
  space_.set_dead(freed_bytes_ + unpunched_bytes_);
  space_.hope();
}

std::vector<SealedBody> StoreImpl::seal(std::vector<Snapshot> snapshots, PackTarget& target, Status& status) {
  std::vector<SealPlan> plans(snapshots.size());
  {
    BodyWriter writer(*this);
    for (size_t i = 0; i < plans.size(); ++i) {
      SealPlan& plan = plans[i];
      plan.snapshot = std::move(snapshots[i]);
      if (same_bytes_as_replaced(plan)) continue;
      Status done = place_body(plan, target);
      kill_point("body-placed");
      if (done) {
        done = write_body(plan, writer);
        plan.base_lost = !done && (done.error().code == Code::kCorrupt || done.error().code == Code::kNotFound);
      }
      if (!done) {
        writer.wait_all();  // its earlier pieces refer to the plan
        plan.status = std::move(done);
      }
    }
    writer.wait_all();
  }
  cut_closed(target);
  if (!plans.empty()) kill_point("body-written");
  std::vector<SealedBody> sealed;
  for (SealPlan& plan : plans) {
    if (plan.status) plan.status = finish_solo(plan);
    if (!plan.status) {
      counters_.errors_volume_write.fetch_add(1, std::memory_order_relaxed);
      log::error("object {} could not be written: {}", plan.snapshot.object->id.value, plan.status.error().message);
      const bool gone = plan.base_lost && quarantine_moving(plan.snapshot.object, plan.status.error().message);
      if (gone) {
        // Nobody wrote to it.
      } else if (plan.base_lost) {  // its own error: who wrote to it hears of it, and everybody else goes on
        std::lock_guard lock(plan.snapshot.object->mutex);
        plan.snapshot.object->note_failed_write(plan.status.error());
      } else if (status) {
        status = plan.status;
      }
      if (target.file && plan.file == target.file) close_target(target);  // its descriptor may be dead
      if (plan.file != plan.snapshot.spill || !plan.file) give_back({}, plan.body.place);
      if (!gone) abandon_seal(plan.snapshot.object);
      forget_when_idle(plan.snapshot.object);
      continue;
    }
    if (plan.file) extents_->note_unsynced(plan.extent, plan.body.place.kind, plan.file);
    if (!plan.snapshot.raw) data_bytes_unsynced_.fetch_add(plan.body.size_bytes, std::memory_order_relaxed);
    counters_.sealed_bodies.fetch_add(1, std::memory_order_relaxed);
    sealed.push_back({std::move(plan.snapshot), std::move(plan.body), plan.extent, plan.shared_with});
  }
  return sealed;
}

// --- the lanes ---

void StoreImpl::set_trouble(const Status& status) {
  if (!status) return set_state("degraded", status.error().message);
  std::lock_guard lock(keeper_mutex_);
  if (state_ != "degraded") return;
  state_ = "ok";
  state_reason_.clear();
  state_since_ns_ = clock_.realtime_ns();
}

bool StoreImpl::bulk_step(bool force) {
  std::vector<Drain> drains;
  std::optional<Error> failed;  // the commit before this
  {
    std::lock_guard lock(bulk_mutex_);
    drains.swap(drains_);
    failed = std::exchange(bulk_commit_error_, std::nullopt);
    bulk_hurry_ = false;
    bulk_has_work_.store(false);
  }
  if (failed)  // what they wait for is dirty again, for as long as the journal takes nothing
    std::erase_if(drains, [&](Drain& drain) {
      if (!drain.listed || ++drain.failed_commits < kMostFailedCommits) return false;
      drain.done(std::unexpected(*failed));
      return true;
    });
  if (failed && background_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  force |= !drains.empty();
  for (Drain& drain : drains) {
    if (std::exchange(drain.listed, true)) continue;
    if (drain.sync && !rescue_in_vain_) move_all_from_lost();  // or there is no mark, and who asked would be refused
    drain.bodies = finished_dirty_bodies();
  }
  Remaining remaining;
  bool any = false;
  std::vector<Snapshot> snapshots = choose_for_bulk(force, remaining);
  Status status;
  if (!snapshots.empty()) {
    any = true;
    CommitRequest request;
    request.bodies = seal(std::move(snapshots), *bulk_target_, status);
    request.closed = std::exchange(bulk_target_->closed, {});
    set_trouble(status);
    request.done = [this](Status committed) {
      if (committed) return;
      std::lock_guard lock(bulk_mutex_);
      bulk_commit_error_ = std::move(committed).error();
    };
    commit(std::move(request));
  } else if ((memory_pressure() || waiting_count_.load() > 0) && evict_clean(kMaxSpillBytes) == 0) {
    any = spill_one();
  }
  bool names_pending = false;
  {
    std::shared_lock names(names_mutex_);
    std::lock_guard lock(dirty_mutex_);
    names_pending = names_->has_pending() || !dirty_attributes_.empty();
  }
  if (names_pending && !any) {  // one at a time: what is in work may take them along, else the next turn sees
    if (committing_.load() == 0) commit({});
    else remaining.some = true;
  }
  std::vector<Drain> waiting;
  for (Drain& drain : drains) {
    std::shared_lock names(names_mutex_);  // for nlink
    std::erase_if(drain.bodies, [](const auto& body) {
      std::lock_guard lock(body.first->mutex);
      const Object& object = *body.first;
      return object.sealed_version >= body.second || object.nlink == 0 || !object.sealable() || !object.can_be_recorded();
    });
    names.unlock();
    if (!status) {
      drain.done(status);
    } else if (drain.bodies.empty()) {
      CommitRequest request;
      request.sync = request.sync_all = drain.sync;
      request.done = std::move(drain.done);
      commit(std::move(request));
      any = true;
    } else {
      waiting.push_back(std::move(drain));
    }
  }
  if (remaining.some) bulk_has_work_.store(true);
  if (waiting.empty() && !remaining.at_once) return any;
  std::lock_guard lock(bulk_mutex_);
  drains_.insert(drains_.begin(), std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end()));
  bulk_hurry_ = true;
  bulk_has_work_.store(true);
  return any;
}

// What a drain that begins now waits for.
std::vector<std::pair<ObjectPtr, uint64_t>> StoreImpl::finished_dirty_bodies() {
  std::vector<std::pair<ObjectPtr, uint64_t>> bodies;
  std::shared_lock names(names_mutex_);  // for nlink
  std::vector<ObjectPtr> dirty;
  {
    std::lock_guard lock(dirty_mutex_);
    dirty = dirty_;
  }
  for (ObjectPtr& object : dirty) {
    std::lock_guard lock(object->mutex);
    if (object->content_dirty() && object->can_be_recorded() && object->nlink > 0)
      bodies.emplace_back(object, object->content_version);
  }
  return bodies;
}

void StoreImpl::drain(bool sync, StatusCompletion done) {
  Drain drain;
  drain.sync = sync;
  drain.done = std::move(done);
  {
    std::lock_guard lock(bulk_mutex_);
    drains_.push_back(std::move(drain));
  }
  kick_bulk(true);
}

void StoreImpl::make_durable(ObjectPtr object, bool sync, StatusCompletion done) {
  UrgentItem item{std::move(object), 0, sync, std::move(done)};
  if (item.object) {
    std::lock_guard lock(item.object->mutex);
    item.content_version = item.object->content_version;
  }
  {
    std::lock_guard lock(urgent_mutex_);
    urgent_.push_back(std::move(item));
  }
  urgent_ready_.notify_one();
}

// One after the other; names in any case.
void StoreImpl::make_all_durable(std::vector<ObjectPtr> objects, bool sync, StatusCompletion done) {
  if (objects.size() <= 1) return make_durable(objects.empty() ? nullptr : objects.front(), sync, std::move(done));
  ObjectPtr first = std::move(objects.back());
  objects.pop_back();
  make_durable(std::move(first), sync, [this, objects = std::move(objects), sync, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::move(status));
    make_all_durable(std::move(objects), sync, std::move(done));
  });
}

bool StoreImpl::is_journaled(const UrgentItem& item) {
  if (!item.object) return true;
  std::lock_guard lock(item.object->mutex);
  return item.object->sealed_version >= item.content_version || item.object->nlink == 0;
}

// object.mutex held.
Status StoreImpl::own_error(const Object& object) {
  if (object.lacks_a_write()) return std::unexpected(*object.write_error);
  if (!object.base.quarantined) return {};
  return fail(Code::kCorrupt, fmt::format("object {} failed its checksum and is quarantined", object.id.value));
}

bool StoreImpl::urgent_step() {
  std::deque<UrgentItem> items;
  {
    std::lock_guard lock(urgent_mutex_);
    items.swap(urgent_);
  }
  if (items.empty()) return false;
  CommitRequest request;
  std::vector<Snapshot> snapshots;
  std::deque<UrgentItem> taken, deferred;
  for (UrgentItem& item : items) {
    if (item.object) {
      Snapshot snapshot;
      std::unique_lock lock(item.object->mutex);
      if (item.sync && move_from_lost(item.object)) item.content_version = item.object->content_version;
      const bool dirty = item.object->content_dirty() && item.object->nlink > 0;  // without a name nothing of it is kept
      const bool busy = item.object->sealing;
      // Sealed before, perhaps by the other lane, and perhaps not synced.
      Status own;
      if (item.sync && !dirty && !busy && lies_in_lost(*item.object))
        own = item.object->nlink > 0 ? own_error(*item.object) : Status();
      else if (item.sync && !dirty && !busy && item.object->base.place.extent.valid())
        request.extents.push_back(item.object->base.place.extent);
      lock.unlock();
      if (!own) {  // not in the commit, which would fail for everybody
        item.done(std::move(own));
        continue;
      }
      const bool mine = std::any_of(snapshots.begin(), snapshots.end(),
                                    [&](const Snapshot& each) { return each.object == item.object; });
      if (dirty && !mine) {
        if (busy || !snapshot_for_seal(item.object, snapshot)) {
          deferred.push_back(std::move(item));
          continue;
        }
        snapshots.push_back(std::move(snapshot));
      } else if (busy && !mine) {
        deferred.push_back(std::move(item));
        continue;
      }
    }
    taken.push_back(std::move(item));
  }
  Status status;
  std::vector<ObjectId> asked;
  for (const Snapshot& snapshot : snapshots) asked.push_back(snapshot.object->id);
  if (!snapshots.empty()) request.bodies = seal(std::move(snapshots), *urgent_target_, status);
  request.closed = std::exchange(urgent_target_->closed, {});
  for (const SealedBody& body : request.bodies) std::erase(asked, body.snapshot.object->id);  // left: those that failed
  if (!taken.empty()) {
    auto waiting = std::make_shared<std::deque<UrgentItem>>();
    for (UrgentItem& item : taken) {
      if (item.object && std::count(asked.begin(), asked.end(), item.object->id) > 0) {
        std::unique_lock lock(item.object->mutex);
        Status own = own_error(*item.object);
        lock.unlock();
        item.done(own ? status : std::move(own));
        continue;
      }
      request.sync |= item.sync;
      waiting->push_back(std::move(item));
    }
    request.done = [this, waiting](Status result) {
      for (UrgentItem& item : *waiting) {
        if (!result || is_journaled(item)) {
          item.done(result);
          continue;
        }
        // Its body was to take over the place of another, and that did not work out: it is sealed again.
        std::lock_guard lock(urgent_mutex_);
        urgent_.push_back(std::move(item));
        urgent_ready_.notify_one();
      }
    };
    commit(std::move(request));
  }
  for (UrgentItem& item : deferred) {
    // Either somebody else seals it, and requeue_deferred() follows when that ends, or its content cannot be sealed.
    std::unique_lock lock(item.object->mutex);
    if (item.object->lacks_a_write()) {
      Error error = *item.object->write_error;
      lock.unlock();
      item.done(std::unexpected(std::move(error)));
      continue;
    }
    const bool busy = item.object->sealing;
    std::lock_guard urgent_lock(urgent_mutex_);
    (busy ? urgent_deferred_ : urgent_).push_back(std::move(item));
  }
  return true;
}

void StoreImpl::requeue_deferred() {
  {
    std::lock_guard lock(urgent_mutex_);
    if (urgent_deferred_.empty()) return;
    for (UrgentItem& item : urgent_deferred_) urgent_.push_back(std::move(item));
    urgent_deferred_.clear();
  }
  urgent_ready_.notify_one();
}

// --- spilling ---

bool StoreImpl::spill_one() {
  ObjectPtr largest;
  uint64_t most = 0, coming_back = 0;
  std::vector<ObjectPtr> candidates;
  {
    std::lock_guard lock(dirty_mutex_);
    candidates = dirty_;
  }
  for (const ObjectPtr& object : candidates) {
    std::lock_guard lock(object->mutex);
    if (object->raw) continue;
    uint64_t bytes = 0;
    for (const Unit& unit : object->units)
      if (unit.block && unit.dirty) bytes += unit.block->capacity_bytes();
    if (object->sealing) coming_back += bytes;
    if (object->sealing || bytes <= most) continue;
    most = bytes;
    largest = object;
  }
  // Half-written bodies are written twice when they are spilled: not while others are about to give their memory back. That
  // must be worth it, or a few small ones after the other would keep who waits waiting.
  if (!largest || coming_back >= std::min(kMaxSpillBytes, pool_->limit_bytes() / 8)) return false;
  {
    std::lock_guard lock(largest->mutex);
    if (largest->sealing || largest->forgotten) return true;
    largest->sealing = true;  // nobody else seals or spills it meanwhile
  }
  Status status = spill(largest);
  {
    std::lock_guard lock(largest->mutex);
    end_seal(largest);
  }
  requeue_deferred();
  set_trouble(status);
  std::unique_lock lock(names_mutex_);
  forget_if_idle(largest);
  return status.has_value();
}

Status StoreImpl::spill(const ObjectPtr& object) {
  FilePtr file;
  ExtentId extent;
  {
    std::lock_guard lock(object->mutex);
    file = object->spill;
    extent = object->spill_extent;
  }
  if (!file) {
    KVC_ASSIGN(Extents::Made made, extents_->make(PlaceKind::kSolo));
    kill_point("spill-made");
    file = made.file;
    extent = made.id;
    std::lock_guard lock(object->mutex);
    object->spill = made.file;
    object->spill_extent = made.id;
    object->spill_written.clear();
  }
  struct Piece {
    size_t index;
    BlockPtr block;
    uint32_t bytes;
    uint64_t checksum = 0;
  };
  uint64_t spilled = 0;
  size_t next = 0;
  while (spilled < kMaxSpillBytes) {
    std::vector<Piece> pieces;
    {
      std::lock_guard lock(object->mutex);
      for (; next < object->units.size() && pieces.size() < kWriteBytes / kUnitBytes; ++next) {
        const Unit& unit = object->units[next];
        if (!unit.block || !unit.dirty || next * kUnitBytes >= object->size_bytes) continue;
        const uint64_t length = unit_length(object->size_bytes, next);
        if (object->spill_written.size() <= next) object->spill_written.resize(next + 1);
        object->spill_written[next] = true;
        pieces.push_back({next, unit.block, static_cast<uint32_t>(std::min<uint64_t>(length, unit.block->capacity_bytes()))});
      }
    }
    if (pieces.empty()) break;
    for (Piece& piece : pieces) {
      const std::span<const std::byte> bytes = piece.block->bytes().first(align_up(piece.bytes, kBlockBytes));
      KVC_TRY(file->write({&bytes, 1}, piece.index * kUnitBytes));
      piece.checksum = checksum(bytes.first(piece.bytes));
      counters_.write_volume_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
      spilled += bytes.size();
      kill_point("spill-written");
    }
    std::vector<BlockPtr> dropped;
    std::lock_guard lock(object->mutex);
    object->memory_file.reset();
    for (Piece& piece : pieces) {
      if (piece.index >= object->units.size()) continue;  // truncated meanwhile
      Unit& unit = object->units[piece.index];
      if (unit.block != piece.block) continue;  // written meanwhile: the clone is newer
      unit.spilled = true;
      unit.spill_bytes = unit.spill_valid_bytes = piece.bytes;
      unit.spill_checksum = piece.checksum;
      unit.dirty = false;
      dropped.push_back(std::move(unit.block));
      unit.block.reset();
    }
  }
  return {};
}

}  // namespace kvcachefs
