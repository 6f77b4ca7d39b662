#include "store/space/raw_space.h"

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {

namespace {

// An entry of the file's extent map takes 12 to 16 bytes, in nodes that may be a quarter full. Writes of 64 KiB are seldom split.
constexpr uint64_t kMapEntryBytes = 64;
constexpr uint64_t kPieceBytes = 64 * kKiB;

uint64_t map_bytes_of(uint64_t data_bytes) { return (1 + data_bytes / kPieceBytes) * kMapEntryBytes; }

}  // namespace

std::optional<RawSpace::Claim> RawSpace::claim(ExtentId id, const FilePtr& file, uint64_t offset, uint64_t length) {
  const uint64_t first = offset - offset % kBlockBytes, bytes = align_up(offset + length, kBlockBytes) - first;
  const auto take = [&](uint64_t data_bytes) -> std::optional<Claim> {
    const uint64_t map_bytes = data_bytes > 0 ? map_bytes_of(data_bytes) : 0;
    if (!space_.try_reserve(data_bytes + map_bytes)) return std::nullopt;
    Claim claim;
    claim.owner_ = this;
    claim.id_ = id;
    claim.file_ = file;
    claim.data_bytes_ = data_bytes;
    claim.map_bytes_ = map_bytes;
    return claim;
  };
  if (auto claim = take(bytes)) return claim;
  measure_changed();  // overwrites were counted with more than they took
  if (auto claim = take(bytes)) return claim;
  auto there = file->allocated_in(first, bytes);
  return take(bytes - std::min(bytes, there ? *there : 0));
}

void RawSpace::end(Claim& claim) {
  std::lock_guard lock(mutex_);
  if (claim.data_bytes_ > 0) {
    Entry& entry = entries_[claim.id_];
    entry.ended_bytes += claim.data_bytes_;
    entry.map_bytes += claim.map_bytes_;
    entry.file = std::move(claim.file_);
  }
  space_.raw_ended(claim.data_bytes_ + claim.map_bytes_, claim.data_bytes_ + claim.map_bytes_);
}

uint64_t RawSpace::ended_of(ExtentId id) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(id);
  return found == entries_.end() ? 0 : found->second.ended_bytes;
}

// `ended_before`: bytes of the operations that ended before `info` was read, which it therefore includes.
void RawSpace::note(ExtentId id, const FileInfo& info, uint64_t ended_before) {
  FilePtr dropped;  // closed after the lock is released
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  const uint64_t before = entry.counted();
  entry.measured_bytes = info.allocated_bytes;
  if (!blocks_lag_) entry.told_bytes = std::max(entry.told_bytes, ended_before);
  if (entry.ended_bytes == ended_before) dropped = std::move(entry.file);
  space_.raw_measured(before, entry.counted());
}

void RawSpace::measure(ExtentId id, File& file) {
  const uint64_t ended = ended_of(id);
  if (auto info = file.info()) note(id, *info, ended);
}

void RawSpace::measure_changed() {
  std::vector<std::pair<ExtentId, FilePtr>> changed;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : entries_)
      if (entry.file) changed.emplace_back(id, entry.file);
  }
  for (const auto& [id, file] : changed) measure(id, *file);
}

void RawSpace::measure_all(std::vector<ExtentId> ids, const std::function<Result<FileInfo>(ExtentId)>& info) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : entries_) ids.push_back(id);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (ExtentId id : ids) {
    const uint64_t ended = ended_of(id);
    auto found = info(id);
    if (found) {
      note(id, *found, ended);
    } else if (found.error().code == Code::kNotFound) {
      FilePtr dropped;
      std::lock_guard lock(mutex_);
      auto entry = entries_.find(id);
      if (entry == entries_.end()) continue;
      dropped = std::move(entry->second.file);
      space_.raw_measured(entry->second.counted(), 0);
      entries_.erase(entry);
    }
  }
}

void RawSpace::sync_begins() {
  std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    entry.ended_at_sync = entry.ended_bytes;
    entry.map_at_sync = entry.map_bytes;
  }
}

void RawSpace::synced() {
  std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    const uint64_t before = entry.counted();
    entry.synced_map_bytes = std::max(entry.synced_map_bytes, entry.map_at_sync);
    if (blocks_lag_) entry.told_bytes = std::max(entry.told_bytes, entry.ended_at_sync);
    space_.raw_measured(before, entry.counted());
  }
}

Status RawSpace::set_size(File& file, uint64_t size_bytes) {
  std::lock_guard lock(size_mutex_);
  return file.truncate(size_bytes);
}

Status RawSpace::grow(File& file, uint64_t size_bytes) {
  std::lock_guard lock(size_mutex_);
  KVC_ASSIGN(const FileInfo info, file.info());
  if (info.size_bytes >= size_bytes) return {};
  return file.truncate(size_bytes);
}

}  // namespace kvcachefs
