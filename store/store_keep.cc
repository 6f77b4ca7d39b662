// The keeper: one thread for what must happen now and then. Syncs what was written, lets the index catch up, writes
// checkpoints, gives space back, and takes work off the threads that must not block.
#include <algorithm>
#include <future>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {
constexpr int64_t kIndexIntervalNs = 5'000'000'000;    // the index follows at least this often ...
constexpr uint64_t kIndexRows = 50'000;                // ... or when this many rows wait
constexpr uint64_t kReclaimBytes = 64 * kMiB;          // dead bytes that are worth a sync of their own
constexpr uint64_t kCheckpointBytes = 64 * kMiB;       // of journal
constexpr uint64_t kManyJournalFiles = 32;
}  // namespace

void StoreImpl::set_state(std::string state, std::string reason) {
  std::lock_guard lock(keeper_mutex_);
  if (state_ == state) return;
  state_ = std::move(state);
  state_reason_ = std::move(reason);
  state_since_ns_ = clock_.realtime_ns();
}

void StoreImpl::refresh_space() {
  if (auto backing = volume_->space()) space_.set_backing(*backing);
  if (index_->totals().raw_bodies == 0) return space_.set_raw(0);
  uint64_t raw_bytes = 0;
  Status status = index_->scan_extents([&](ExtentId id, const ExtentUsage& usage) {
    if (usage.kind != PlaceKind::kRaw) return true;
    if (auto info = volume_->info(extent_path(identity_.node, id, PlaceKind::kRaw))) raw_bytes += info->allocated_bytes;
    return true;
  });
  if (status) space_.set_raw(raw_bytes);
}

bool StoreImpl::keeper_step(bool force) {
  std::deque<std::move_only_function<void()>> work;
  bool due = force || judged_tail_, dead_worth_it = false;
  {
    std::lock_guard lock(keeper_mutex_);
    work.swap(keeper_work_);
    due |= keeper_kicked_ && freed_bytes_ > 0;
    keeper_kicked_ = false;
    dead_worth_it = freed_bytes_ > kReclaimBytes;
  }
  for (auto& item : work) item();
  if (has_versions_) sweep_versions();
  const uint64_t rows = index_->overlay_rows();
  const int64_t now = clock_.monotonic_ns();
  const bool waiting = rows > 0 || data_bytes_unsynced_.load(std::memory_order_relaxed) > 0;
  due |= dead_worth_it || rows > kIndexRows || (waiting && now - last_index_point_ns_ > kIndexIntervalNs);
  if (!due) return !work.empty();
  last_index_point_ns_ = now;
  Status status = index_point();
  if (!status) {
    log::error("upkeep: {}", status.error().message);
    set_trouble(status);
  }
  refresh_space();
  return true;
}

Status StoreImpl::sync_point() {
  constexpr size_t kMostRows = 100'000;
  CommitRequest request;
  request.sync = request.sync_all = true;
  request.successors = prefetcher_->changed_rows(kMostRows);
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = promise->get_future();
  request.done = [promise](Status status) { promise->set_value(std::move(status)); };
  commit(std::move(request));
  if (!committer_runs_.load())
    while (commit_step()) {
    }
  return answer.get();
}

Status StoreImpl::index_point() {
  std::vector<FreedPlace> dead;  // their records are synced by the sync point below
  {
    std::lock_guard lock(keeper_mutex_);
    dead.swap(freed_);
    keeper_has_work_ = false;
  }
  Status status = sync_point();
  if (status) status = index_->commit();
  if (status && judged_tail_) status = write_checkpoint();
  if (!status) {
    counters_.errors_index.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard lock(keeper_mutex_);
    freed_.insert(freed_.end(), dead.begin(), dead.end());
    return status;
  }
  counters_.index_commits.fetch_add(1, std::memory_order_relaxed);
  if (std::exchange(judged_tail_, false)) sweep_crashed_epoch();
  reclaim(std::move(dead));
  const uint64_t journal_bytes = journal_bytes_.load(std::memory_order_relaxed);
  if (journal_bytes > std::max(kCheckpointBytes, 2 * checkpoint_bytes_) || journal_files_ > kManyJournalFiles)
    return write_checkpoint();
  return {};
}

// A copy of everything live, from the index as it was just committed: only this thread commits, so the scan sees one
// state. Journals before it can go afterwards.
Status StoreImpl::write_checkpoint() {
  CheckpointHeader header;
  header.covers = index_->position();
  header.stamp = index_->stamp();
  header.next_number = next_number_.load();
  KVC_ASSIGN(auto writer, CheckpointWriter::create(volume_, identity_, checkpoint_seq_, header));
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
  KVC_TRY(writer->finish());
  CheckpointInfo info;
  info.epoch = identity_.epoch;
  info.seq = checkpoint_seq_++;
  info.header = header;
  counters_.checkpoints.fetch_add(1, std::memory_order_relaxed);
  if (auto file = volume_->info(checkpoint_path(identity_.node, info.epoch, info.seq))) checkpoint_bytes_ = file->size_bytes;
  // The file being written stays; the next checkpoint removes it.
  KVC_TRY(journal_->rotate());
  KVC_TRY(remove_covered(*volume_, identity_, header.covers, info));
  journal_files_ = 1;
  journal_bytes_.store(0);
  return {};
}

// --- giving space back (invariant 6: only after the records that gave it up, and their data, were synced) ---

void StoreImpl::reclaim(std::vector<FreedPlace> dead) {
  // Neighbours are punched together.
  std::sort(dead.begin(), dead.end(), [](const FreedPlace& a, const FreedPlace& b) {
    return std::tie(a.place.extent, a.place.offset) < std::tie(b.place.extent, b.place.offset);
  });
  std::vector<FreedPlace> kept;
  uint64_t given_back = 0;
  for (size_t i = 0; i < dead.size();) {
    const FreedPlace& first = dead[i];
    if (first.object.valid() && still_needed(first)) {  // unlinked, but somebody reads it
      kept.push_back(first);
      ++i;
      continue;
    }
    uint64_t end = first.place.offset + align_up(first.place.length, kBlockBytes);
    uint64_t bytes = align_up(first.place.length, kBlockBytes);
    size_t next = i + 1;
    for (; next < dead.size() && dead[next].place.extent == first.place.extent && dead[next].place.offset == end &&
           !(dead[next].object.valid() && still_needed(dead[next]));
         ++next) {
      bytes += align_up(dead[next].place.length, kBlockBytes);
      end = dead[next].place.offset + align_up(dead[next].place.length, kBlockBytes);
    }
    if (reclaim_range(first.place, end))
      given_back += bytes;
    else
      kept.insert(kept.end(), dead.begin() + static_cast<long>(i), dead.begin() + static_cast<long>(next));
    i = next;
  }
  counters_.reclaimed_bytes.fetch_add(given_back, std::memory_order_relaxed);
  {
    std::lock_guard lock(keeper_mutex_);
    freed_bytes_ -= given_back;
    freed_.insert(freed_.end(), kept.begin(), kept.end());
    space_.set_dead(freed_bytes_);
  }
  std::lock_guard lock(waiting_mutex_);
  memory_came_back_ = true;  // writes may wait for space, too
  waiting_ready_.notify_one();
}

// The object lives on in RAM and reads from there: it is open, or an older version of a name with several writers.
bool StoreImpl::still_needed(const FreedPlace& freed) {
  std::shared_lock names(names_mutex_);
  ObjectPtr object = live(freed.object);
  if (!object) return false;
  std::lock_guard lock(object->mutex);
  if (object->base.place != freed.place) return false;  // it has a newer body
  return object->handles > 0 || !object->loading.empty() || object->nlink > 0;
}

// True when the range is gone for good (or was never there).
bool StoreImpl::reclaim_range(const Place& place, uint64_t end) {
  if (place.kind == PlaceKind::kNone || place.kind == PlaceKind::kInline) return true;
  Status status;
  bool whole = place.kind != PlaceKind::kPacked;
  if (!whole) {
    {
      std::lock_guard lock(keeper_mutex_);
      if (open_extents_.contains(place.extent) && place.length == 0) return true;
      whole = !open_extents_.contains(place.extent);
    }
    auto usage = index_->find_extent(place.extent);
    if (!usage) return false;
    whole = whole && (!*usage || (*usage)->live_bytes == 0);
  }
  if (whole) {
    status = extents_->remove(place.extent, place.kind);
    if (status) counters_.removed_extents.fetch_add(1, std::memory_order_relaxed);
    if (!status && status.error().code == Code::kNotFound) status = {};  // removed with an earlier range of it
  } else if (end > place.offset) {
    if (!volume_->features().punch_hole) return true;  // comes back with the whole extent
    auto file = extents_->open_for_punch(place.extent);
    status = file ? (*file)->punch(place.offset, end - place.offset) : Status(std::unexpected(std::move(file).error()));
    if (status) counters_.punched_ranges.fetch_add(1, std::memory_order_relaxed);
    if (!status && status.error().code == Code::kNotFound) status = {};
  }
  if (!status) log::warn("space could not be given back yet: {}", status.error().message);
  return status.has_value();
}

// Versions of a temporary name whose writers never renamed them.
void StoreImpl::sweep_versions() {
  std::unique_lock lock(names_mutex_);
  std::vector<std::pair<DirtyName, ObjectId>> dropped;
  bool some_left = false;
  const int64_t now = clock_.monotonic_ns();
  names_->for_each_with_versions([&](const DirtyName& name, NameState& state) {
    std::erase_if(state.older_versions, [&](ObjectId id) {
      ObjectPtr object = live(id);
      if (!object) return true;
      std::lock_guard object_lock(object->mutex);
      if (object->handles > 0 || now - object->last_write_ns < kAboutToRenameNs) return false;
      dropped.emplace_back(name, id);
      return true;
    });
    some_left |= !state.older_versions.empty();
  });
  has_versions_ = some_left;
  for (auto& [name, id] : dropped) {
    if (ObjectPtr object = live(id)) {
      change_links(object, -1);
      forget_if_idle(object);
    }
    names_->put_back_pending(name);
  }
  if (!dropped.empty()) kick_bulk();
}

}  // namespace kvcachefs
