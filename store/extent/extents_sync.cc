// The part of Extents that syncs noted files, lets callers wait for syncs, and frees descriptors when they run short.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/extent/extents.h"

namespace kvcachefs {

void Extents::note_unsynced(ExtentId id, PlaceKind kind, FilePtr file, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (lost_.contains(id)) return;
  Unsynced& noted = unsynced_[id];
  noted.file = std::move(file);
  noted.kind = kind;
  noted.bytes += bytes;
}

// Takes a file out of the notes. Caller holds mutex_ and must call sync_taken() next.
Extents::Unsynced Extents::take_unsynced(std::unordered_map<ExtentId, Unsynced>::iterator at) {
  Unsynced taken = std::move(at->second);
  in_hand_.emplace(at->first, taken.file);
  unsynced_.erase(at);
  return taken;
}

Status Extents::sync_all() {
  std::vector<std::pair<ExtentId, Unsynced>> files;
  std::vector<std::string> directories;
  std::vector<ExtentId> of_others;
  Status untold;
  {
    std::lock_guard lock(mutex_);
    unsynced_directories_.merge(removed_from_);
    removed_from_.clear();
    for (const auto& [id, file] : in_hand_) of_others.push_back(id);
    while (!unsynced_.empty()) {
      const ExtentId id = unsynced_.begin()->first;
      files.emplace_back(id, take_unsynced(unsynced_.begin()));
    }
    directories.assign(unsynced_directories_.begin(), unsynced_directories_.end());
    unsynced_directories_.clear();
  }
  Status status = sync_files(std::move(files), std::move(directories));
  Status waited = wait_for_syncs(of_others);
  {
    std::lock_guard lock(mutex_);
    untold = std::exchange(untold_, {});
  }
  if (!status) return status;
  return waited ? untold : waited;
}

Status Extents::sync_ahead() {
  std::vector<ExtentId> ids;
  Status result;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, unsynced] : unsynced_) ids.push_back(id);
    result = std::exchange(untold_, {});
  }
  for (ExtentId id : ids) {
    Unsynced unsynced;
    {
      std::lock_guard lock(mutex_);
      auto found = unsynced_.find(id);
      if (found == unsynced_.end()) continue;
      unsynced = take_unsynced(found);
    }
    if (Status status = sync_taken(id, std::move(unsynced)); !status && result) result = std::move(status);
  }
  return result;
}

// Waits for those of `ids` that other calls are syncing; returns the error of one that is lost.
Status Extents::wait_for_syncs(const std::vector<ExtentId>& ids) {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [&] { return std::ranges::none_of(ids, [&](ExtentId id) { return in_hand_.contains(id); }); });
  for (ExtentId id : ids)
    if (auto found = lost_.find(id); found != lost_.end()) return std::unexpected(found->second);
  return {};
}

Status Extents::sync(const std::vector<ExtentId>& ids) {
  std::vector<std::pair<ExtentId, Unsynced>> files;
  std::vector<std::string> directories;
  {
    std::lock_guard lock(mutex_);
    for (ExtentId id : ids)
      if (auto found = unsynced_.find(id); found != unsynced_.end()) files.emplace_back(id, take_unsynced(found));
    directories.assign(unsynced_directories_.begin(), unsynced_directories_.end());
    unsynced_directories_.clear();
  }
  Status status = sync_files(std::move(files), std::move(directories));
  Status waited = wait_for_syncs(ids);
  return status ? waited : status;
}

Status Extents::told_of_raw(const std::vector<ExtentId>& ids) {
  std::lock_guard lock(mutex_);
  for (ExtentId id : ids)
    if (auto found = lost_raw_.find(id); found != lost_raw_.end()) return std::unexpected(found->second);
  return {};
}

bool Extents::is_lost(ExtentId id) {
  std::lock_guard lock(mutex_);
  return lost_.contains(id);
}

std::vector<std::pair<ExtentId, Error>> Extents::lost() {
  std::lock_guard lock(mutex_);
  return {lost_.begin(), lost_.end()};
}

namespace {
bool is_same_file(const FileInfo& one, const FileInfo& other) { return one.file_id == other.file_id && one.file_system == other.file_system; }
}  // namespace

// An error if others removed, renamed or replaced the file: it can still be read and synced, but a look-up by its name does not find
// these bytes. Called by every sync, because the data is then reported as durable.
Status Extents::look_for_file(ExtentId id, const Unsynced& unsynced) {
  const std::string name = path(id, unsynced.kind);
  auto there = volume_->info(name);
  while (!there && lacks_descriptors(there.error()) && close_idle()) there = volume_->info(name);  // not another sync, which would call this again
  const auto open = unsynced.file->info();
  const char* what = nullptr;
  if (!there && is_not_there(there.error())) what = there.error().code == Code::kNotFound ? "removed" : "replaced";
  else if (!open && open.error().sys_errno == ESTALE) what = "removed";  // another client of NFS removed it
  else if (there && (there->is_directory || (open && volume_->features().file_ids && !is_same_file(*there, *open)))) what = "replaced";
  if (what == nullptr) return {};
  return fail(Code::kIo, fmt::format("{} was {} by others while it was open", name, what));
}

// Whether this store removed the file while a sync was under way: its content is then not needed.
bool Extents::removed_here(ExtentId id) {
  std::lock_guard lock(mutex_);
  return removed_.contains(id);
}

Status Extents::sync_taken(ExtentId id, Unsynced unsynced) {
  Status status = unsynced.file->sync_data();
  if (status) synced_bytes_.fetch_add(unsynced.bytes, std::memory_order_relaxed);
  const bool is_synced = status.has_value();
  if (status) status = look_for_file(id, unsynced);
  if (!status && removed_here(id)) status = {};
  if (!status) {
    status.error().message += ": what was written to it since it was synced last may be lost";
    log::error("{}", status.error().message);
  }
  FilePtr noted_again, dropped;  // closed after the lock is released, as `unsynced` is
  {
    std::lock_guard lock(mutex_);
    const auto [first, end] = in_hand_.equal_range(id);
    in_hand_.erase(std::find_if(first, end, [&](const auto& each) { return each.second == unsynced.file; }));
    if (in_hand_.empty()) removed_.clear();
    if (!status && unsynced.kind == PlaceKind::kRaw) {
      lost_raw_.try_emplace(id, std::exchange(status, {}).error());
    } else if (!status) {
      lost_.try_emplace(id, status.error());
      if (is_synced) open_.add(id, unsynced.file, dropped);  // its name leads to it no more: what is in it can only be read, and written elsewhere, through this descriptor
      if (auto again = unsynced_.find(id); again != unsynced_.end()) {
        noted_again = std::move(again->second.file);
        unsynced_.erase(again);
      }
    }
  }
  settled_.notify_all();
  return status;
}

// Syncs all, even after an error; returns the first error. Closes each file before the next, because syncing directories needs descriptors too.
Status Extents::sync_files(std::vector<std::pair<ExtentId, Unsynced>> files, std::vector<std::string> directories) {
  Status result;
  for (auto& [id, unsynced] : files)
    if (Status status = sync_taken(id, std::move(unsynced)); !status && result) result = std::move(status);
  for (auto& directory : directories) {
    Status status = with_descriptor([&] { return volume_->sync_directory(directory); });
    if (status || status.error().code == Code::kNotFound) continue;  // removed: it held nothing
    if (result) result = std::move(status);
    std::lock_guard lock(mutex_);
    unsynced_directories_.insert(std::move(directory));
  }
  return result;
}

// --- when descriptors run short ---

// Syncs, and so closes, a file without a writer (another would stay open). False: there is none. The next sync_all() or sync_ahead() returns its error.
bool Extents::sync_one() {
  ExtentId id;
  Unsynced unsynced;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(unsynced_, [](const auto& each) { return each.second.file.use_count() == 1; });
    if (found == unsynced_.end()) return false;
    id = found->first;
    unsynced = take_unsynced(found);
  }
  Status status = sync_taken(id, std::move(unsynced));
  std::lock_guard lock(mutex_);
  if (!status && untold_) untold_ = std::move(status);
  return true;
}

// Closes the files that are only cached for the next reader.
bool Extents::close_idle() {
  std::vector<FilePtr> dropped;  // closed after the lock is released
  std::lock_guard lock(mutex_);
  dropped = open_.take_all();
  return !dropped.empty();
}

bool Extents::give_up_descriptor() { return close_idle() || sync_one() || give_up_spare(); }

// A file that is open because it is not synced yet, or is being synced; null: neither.
FilePtr Extents::written(ExtentId id) {
  std::lock_guard lock(mutex_);
  if (auto found = unsynced_.find(id); found != unsynced_.end()) return found->second.file;
  const auto found = in_hand_.find(id);
  return found != in_hand_.end() ? found->second : nullptr;
}

}  // namespace kvcachefs
