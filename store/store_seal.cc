// RAM -> volume. A lane (store_lanes.cc) takes snapshots of finished bodies; here each gets its place and is written in
// large aligned pieces, hashed while the writes are under way.
#include <algorithm>
#include <array>
#include <cstring>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/store_impl.h"
#include "store/store_seal.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kInFlightBytes = 32 * kMiB;     // of a lane
constexpr size_t kMaxPieces = 512;                 // iovecs of one request (IOV_MAX is 1024)
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

// How large a pack becomes. Where holes cannot be punched it comes back as a whole, after all in it died: a small part of the
// capacity has to do, or all of the volume could be dead ranges of a pack that is being written.
static uint64_t pack_bytes(const Volume& volume, uint64_t extent_bytes, uint64_t limit_bytes) {
  constexpr uint64_t kPart = 16, kLeastBytes = 4 * kMiB;
  if (volume.features().punch_hole) return extent_bytes;
  return std::min(extent_bytes, std::max(limit_bytes / kPart, kLeastBytes));
}

// Collects pieces that lie next to each other in a file into large requests, several in flight. Used by one thread;
// completions come on the volume's.
class StoreImpl::BodyWriter {
 public:
  explicit BodyWriter(StoreImpl& store) : store_(store), one_body_a_write_(store.volume_->features().whole_writes) {}
  ~BodyWriter() { wait_all(); }

  // `keep` holds the memory of the piece. Blocks while too much is in flight.
  void add(SealPlan* plan, const FilePtr& file, uint64_t offset, std::span<std::byte> piece, BlockPtr keep) {
    const bool other_body = one_body_a_write_ && !plans_.empty() && plans_.back() != plan;
    if (other_body || !(file == file_ && offset == offset_ + bytes_ && bytes_ + piece.size() <= kWriteBytes && pieces_.size() < kMaxPieces))
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
  const bool one_body_a_write_;  // so that punching a body gives its room back
  FilePtr file_;
  uint64_t offset_ = 0, bytes_ = 0;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<BlockPtr> keep_;
  std::vector<SealPlan*> plans_;
  LeafMutex mutex_;  // a leaf: in_flight_ and the status of plans
  ConditionVariable room_;
  uint64_t in_flight_ = 0;
};

// Sealing gives memory back, and must not wait until others do. The caller has nothing else that was read back then.
BodyReader::Memory StoreImpl::memory_to_seal(BodyWriter* writer) {
  return [this, writer](uint64_t bytes) {
    return cache_->reserve_to_seal(bytes, [writer] {
      if (writer != nullptr) writer->wait_all();
    });
  };
}

bool StoreImpl::snapshot_for_seal(const ObjectPtr& object, Promise promise, Snapshot& snapshot) {
  const auto lock = object->lock();
  if (object->sealing || !object->content_dirty() || !object->sealable()) return false;
  // What is reserved goes with this version; the next may be asked for.
  if (!changes_->keep_room(*object) && promise == Promise::kKept) return false;
  snapshot = object->begin_seal(object);
  return true;
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

// A pack with room for so many bytes. The old one goes on past its size where no other can be made: what was accepted needs a place.
Status StoreImpl::open_target(PackTarget& target, uint64_t room) {
  if (target.file && extents_->is_lost(target.extent)) close_target(target);
  const uint64_t most = pack_bytes(*volume_, extent_bytes_, space_.limit_bytes());
  const bool full = target.file && target.next_offset + room > most;
  if (target.file && (!full || target.no_pack)) return {};
  if (target.no_pack) return std::unexpected(*target.no_pack);
  auto made = extents_->make(PlaceKind::kPacked);
  if (!made) {
    if (!lacks_files(made.error())) return std::unexpected(std::move(made).error());
    target.no_pack = made.error();
    if (target.file) return {};
    return std::unexpected(std::move(made).error());
  }
  close_target(target);
  target.extent = made->id;
  target.file = std::move(made->file);
  target.next_offset = kBlockBytes;
  size_ahead(*target.file, most);
  dead_.pack_opened(target.extent);
  return {};
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
  if (snapshot.size_bytes < options_.inline_below_bytes()) {
    body.place = {PlaceKind::kInline, {}, 0, snapshot.size_bytes};
    return {};
  }
  if (snapshot.size_bytes >= options_.pack_below_bytes() || room > pack_bytes(*volume_, extent_bytes_, space_.limit_bytes()) - kBlockBytes) {
    auto made = target.no_solo ? Result<Extents::Made>(std::unexpected(*target.no_solo)) : extents_->make(PlaceKind::kSolo);
    if (made) {
      plan.has_its_size = size_ahead(*made->file, room) && room == snapshot.size_bytes;
      body.place = {PlaceKind::kSolo, made->id, 0, snapshot.size_bytes};
      plan.file = std::move(made->file);
      plan.extent = made->id;
      return {};
    }
    if (!lacks_files(made.error())) return std::unexpected(std::move(made).error());
    target.no_solo = std::move(made).error();  // into a pack then, however large it gets
  }
  KVC_TRY(open_target(target, room));
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
      KVC_ASSIGN(block, reader_->fetch(snapshot, index, memory_to_seal(&writer)));
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
bool StoreImpl::same_bytes_as_replaced(SealPlan& plan, BodyWriter& writer) {
  ObjectId replaced;
  {
    const Tree::Read tree = tree_->read();
    replaced = plan.snapshot.object->replaced;
    const auto lock = plan.snapshot.object->lock();
    if (plan.snapshot.object->replaced_checked) return false;
  }
  if (!replaced.valid() || plan.snapshot.spill) return false;
  auto record = index_->find_object(replaced);
  if (!record || !*record) return false;
  const Body& old = (*record)->body;
  const PlaceKind kind = old.place.kind;
  if (old.size_bytes != plan.snapshot.size_bytes || old.quarantined || (kind != PlaceKind::kPacked && kind != PlaceKind::kSolo))
    return false;
  if (old.checksums.size() != div_ceil(old.size_bytes, kUnitBytes) || extents_->is_lost(old.place.extent)) return false;
  Snapshot stored;
  stored.size_bytes = old.size_bytes;
  stored.base = old;
  stored.base_valid_bytes = old.size_bytes;
  std::vector<uint64_t> checksums;
  for (size_t index = 0; index < div_ceil(old.size_bytes, kUnitBytes); ++index) {
    const uint64_t length = unit_length(old.size_bytes, index);
    const Unit* unit = index < plan.snapshot.units.size() ? &plan.snapshot.units[index] : nullptr;
    if (unit == nullptr || !unit->block || unit->block->capacity_bytes() < length) return false;
    if (checksum(unit->block->bytes().first(length)) != old.checksums[index]) return false;
    auto block = reader_->fetch(stored, index, memory_to_seal(&writer));
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

// Of a body that failed. No record ever named the place: its blocks are given back at once, for it may be for want of them.
void StoreImpl::undo_write(SealPlan& plan) {
  const Place& place = plan.body.place;
  Status undone = fail(Code::kUnsupported, "");
  if (place.kind == PlaceKind::kSolo) {
    plan.file.reset();
    undone = extents_->remove(place.extent, PlaceKind::kSolo);
  } else if (place.kind == PlaceKind::kPacked && plan.file && volume_->features().punch_hole) {
    undone = plan.file->punch(place.offset, align_up(place.length, kBlockBytes));
  }
  if (!undone) dead_.add({}, place);
}

std::vector<SealedBody> StoreImpl::seal(std::vector<Snapshot> snapshots, PackTarget& target, Status& status) {
  std::vector<SealPlan> plans(snapshots.size());
  target.no_solo.reset();  // each batch tries once
  target.no_pack.reset();
  {
    BodyWriter writer(*this);
    for (size_t i = 0; i < plans.size(); ++i) {
      SealPlan& plan = plans[i];
      plan.snapshot = std::move(snapshots[i]);
      if (same_bytes_as_replaced(plan, writer)) continue;
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
  size_t failed = 0;
  for (SealPlan& plan : plans) {
    if (plan.status) plan.status = finish_solo(plan);
    if (!plan.status) {
      counters_.errors_volume_write.fetch_add(1, std::memory_order_relaxed);
      if (++failed == 1 || plan.base_lost)
        log::error("object {} could not be written: {}", plan.snapshot.object->id.value, plan.status.error().message);
      const bool gone = plan.base_lost && quarantine_->put_moving(plan.snapshot.object, plan.status.error().message);
      if (gone) {
        // Nobody wrote to it.
      } else if (plan.base_lost) {  // its own error: who wrote to it hears of it, and everybody else goes on
        const auto lock = plan.snapshot.object->lock();
        plan.snapshot.object->note_failed_write(plan.status.error());
      } else if (status) {
        status = plan.status;
      }
      // Its descriptor may be dead; but where there was no room there may be none for another pack.
      if (target.file && plan.file == target.file && plan.status.error().code != Code::kNoSpace) close_target(target);
      if (plan.file != plan.snapshot.spill || !plan.file) undo_write(plan);
      if (!gone) changes_->abandon_seal(plan.snapshot.object);
      tree_->forget_when_idle(plan.snapshot.object);
      continue;
    }
    if (plan.file) extents_->note_unsynced(plan.extent, plan.body.place.kind, plan.file);
    if (!plan.snapshot.raw) commits_.note_written(plan.body.size_bytes);
    counters_.sealed_bodies.fetch_add(1, std::memory_order_relaxed);
    sealed.push_back({std::move(plan.snapshot), std::move(plan.body), plan.extent, plan.shared_with});
  }
  if (failed > 1) log::error("... and {} more objects of {} could not be written", failed - 1, plans.size());
  return sealed;
}

}  // namespace kvcachefs
