#include "store/extent/extents.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/journal/extent_header.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kExtentsPerDirectory = 4096;

const char* suffix(PlaceKind kind) {
  switch (kind) {
    case PlaceKind::kPacked: return "pack";
    case PlaceKind::kSolo: return "solo";
    case PlaceKind::kRaw: return "raw";
    default: return "none";
  }
}

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
}  // namespace

std::string extent_path(std::string_view node, ExtentId id, PlaceKind kind) {
  return fmt::format("{}/extents/{}/{}.{}", epoch_directory(node, id.epoch), id.seq / kExtentsPerDirectory, id.seq,
                     suffix(kind));
}

Extents::Extents(std::shared_ptr<Volume> volume, FileIdentity identity, size_t max_open_files, Whose whose)
    : volume_(std::move(volume)), identity_(std::move(identity)), max_open_files_(max_open_files), whose_(whose) {}

// It has one writer, and this is another node's.
Status Extents::refuse_of_peer(std::string_view what) const {
  if (whose_ == Whose::kOwn) return {};
  return fail(Code::kReadOnly, fmt::format("extents of node '{}', a peer: not {} here", identity_.node, what));
}

Status Extents::make_parents(const std::string& directory) {
  {
    std::lock_guard lock(mutex_);
    if (directories_.contains(directory)) return {};
  }
  KVC_TRY(volume_->make_directories(directory));
  std::lock_guard lock(mutex_);
  directories_.insert(directory);
  unsynced_directories_.insert(parent_of(directory));
  unsynced_directories_.insert(parent_of(parent_of(directory)));
  return {};
}

Result<Extents::Made> Extents::make(PlaceKind kind) {
  auto made = make_file(kind);
  if (!made && lacks_descriptors(made.error())) {
    close_idle();
    static_cast<void>(sync_ahead());  // what is not synced is kept open
    made = make_file(kind);
  }
  if (made || !lacks_files(made.error())) return made;
  if (auto spare = take_spare(kind)) return std::move(*spare);
  return made;
}

Result<Extents::Made> Extents::make_file(PlaceKind kind) {
  KVC_TRY(refuse_of_peer("made"));
  const ExtentId id{identity_.epoch, next_seq_.fetch_add(1)};
  const std::string path = extent_path(identity_.node, id, kind);
  KVC_TRY(make_parents(parent_of(path)));
  const bool direct = kind != PlaceKind::kRaw && volume_->features().direct_io;
  auto opened = volume_->open(path, {.writable = true, .create_exclusive = true, .direct = direct});
  if (!opened) {
    // Not a number, and sooner or later a directory, for each try. Where it may have been made all the same, it is not tried again.
    uint64_t unused = id.seq + 1;
    if (lacks_files(opened.error())) next_seq_.compare_exchange_strong(unused, id.seq);
    return std::unexpected(std::move(opened).error());
  }
  FilePtr file = std::move(*opened);
  kill_point("extent-made");
  if (kind == PlaceKind::kPacked) {
    alignas(kBlockBytes) std::byte block[kBlockBytes] = {};
    const Bytes header = encode_pack_header({identity_, id.seq});
    std::copy(header.begin(), header.end(), block);
    const std::span<const std::byte> piece(block);
    if (auto written = file->write({&piece, 1}, 0); !written) {
      static_cast<void>(volume_->remove_file(path));  // or each try would leave one behind
      return std::unexpected(std::move(written).error());
    }
    kill_point("extent-header");
  }
  std::lock_guard lock(mutex_);
  unsynced_directories_.insert(parent_of(path));
  unsynced_.emplace(id, Unsynced{file, kind});
  return Made{id, std::move(file)};
}

std::optional<Extents::Made> Extents::take_spare(PlaceKind kind) {
  std::lock_guard lock(mutex_);
  if (kind != PlaceKind::kPacked && kind != PlaceKind::kSolo) return std::nullopt;
  std::vector<Made>& spares = kind == PlaceKind::kPacked ? spare_packs_ : spare_solos_;
  if (spares.empty()) return std::nullopt;
  Made made = std::move(spares.back());
  spares.pop_back();
  unsynced_.emplace(made.id, Unsynced{made.file, kind});
  return made;
}

Status Extents::keep_spares(size_t count) {
  for (const PlaceKind kind : {PlaceKind::kPacked, PlaceKind::kSolo}) {
    std::vector<Made>& spares = kind == PlaceKind::kPacked ? spare_packs_ : spare_solos_;
    while (true) {
      {
        std::lock_guard lock(mutex_);
        if (spares.size() >= count) break;
      }
      KVC_ASSIGN(Made made, make_file(kind));
      std::lock_guard lock(mutex_);
      spares.push_back(std::move(made));
    }
  }
  return {};
}

bool Extents::give_up_spare() {
  for (const PlaceKind kind : {PlaceKind::kSolo, PlaceKind::kPacked})
    if (auto spare = take_spare(kind)) {
      spare->file.reset();
      return remove(spare->id, kind).has_value();
    }
  return false;
}

void Extents::remove_spares() {
  while (give_up_spare()) {
  }
}

// Descriptors that are only kept for the next reader.
void Extents::close_idle() {
  std::unordered_map<ExtentId, Cached> dropped;  // closed after the lock is given up
  std::lock_guard lock(mutex_);
  dropped.swap(open_);
  ages_.clear();
}

namespace {
std::unexpected<Error> unknown_node(ExtentId id) {
  return fail(Code::kNotFound, fmt::format("the node of extent {}/{} is not known any more", id.there().epoch, id.seq));
}
}  // namespace

FilePtr Extents::cached(ExtentId id) {
  if (id.is_foreign()) {
    const std::shared_ptr<Extents> peer = peer_of(id);
    return peer ? peer->cached(id.there()) : nullptr;
  }
  std::lock_guard lock(mutex_);
  auto found = open_.find(id);
  if (found == open_.end()) return nullptr;
  ages_.splice(ages_.begin(), ages_, found->second.age);
  return found->second.file;
}

Result<FilePtr> Extents::open(ExtentId id, PlaceKind kind) {
  if (id.is_foreign()) {
    const std::shared_ptr<Extents> peer = peer_of(id);
    if (!peer) return unknown_node(id);
    return peer->open(id.there(), kind);
  }
  if (FilePtr file = cached(id)) return file;
  const bool raw = kind == PlaceKind::kRaw;
  const bool writable = raw && whose_ == Whose::kOwn;
  uint64_t removals = 0;
  {
    std::lock_guard lock(mutex_);
    removals = removals_;
  }
  const auto open_file = [&] {
    return volume_->open(extent_path(identity_.node, id, kind), {.writable = writable, .direct = !raw && volume_->features().direct_io});
  };
  auto opened = open_file();
  if (!opened && lacks_descriptors(opened.error())) {
    close_idle();
    opened = open_file();
  }
  KVC_ASSIGN(FilePtr file, std::move(opened));
  FilePtr dropped;  // closed after the lock is given up
  std::lock_guard lock(mutex_);
  if (removals != removals_) return file;
  auto [entry, fresh] = open_.try_emplace(id);
  if (!fresh) return entry->second.file;
  ages_.push_front(id);
  entry->second = {file, ages_.begin()};
  if (open_.size() > max_open_files_) {
    auto oldest = open_.find(ages_.back());
    dropped = std::move(oldest->second.file);
    open_.erase(oldest);
    ages_.pop_back();
  }
  return file;
}

Result<FilePtr> Extents::open_fresh(ExtentId id, PlaceKind kind) {
  if (id.is_foreign()) {
    const std::shared_ptr<Extents> peer = peer_of(id);
    if (!peer) return unknown_node(id);
    return peer->open_fresh(id.there(), kind);
  }
  return volume_->open(extent_path(identity_.node, id, kind),
                       {.writable = false, .direct = kind != PlaceKind::kRaw && volume_->features().direct_io});
}

Result<FilePtr> Extents::open_buffered(ExtentId id, PlaceKind kind) {
  return volume_->open(extent_path(identity_.node, id, kind), {});
}

Result<FilePtr> Extents::open_for_punch(ExtentId id) {
  KVC_TRY(refuse_of_peer("punched"));
  return volume_->open(extent_path(identity_.node, id, PlaceKind::kPacked), {.writable = true});
}

void Extents::close_cached(ExtentId id) {
  if (id.is_foreign()) {
    if (const std::shared_ptr<Extents> peer = peer_of(id)) peer->close_cached(id.there());
    return;
  }
  FilePtr dropped;  // closed after the lock is given up
  std::lock_guard lock(mutex_);
  auto found = open_.find(id);
  if (found == open_.end()) return;
  dropped = std::move(found->second.file);
  ages_.erase(found->second.age);
  open_.erase(found);
}

std::vector<ExtentId> Extents::cached_ids() {
  std::lock_guard lock(mutex_);
  return {ages_.begin(), ages_.end()};
}

void Extents::let_go(ExtentId id) {
  close_cached(id);
  FilePtr unsynced;  // closed after the lock is given up
  std::lock_guard lock(mutex_);
  auto found = unsynced_.find(id);
  if (found == unsynced_.end()) return;
  unsynced = std::move(found->second.file);
  unsynced_.erase(found);
}

void Extents::forget(ExtentId id) {
  let_go(id);
  std::lock_guard lock(mutex_);
  lost_.erase(id);
  lost_raw_.erase(id);
}

Result<FileInfo> Extents::info(ExtentId id, PlaceKind kind) const { return volume_->info(path(id, kind)); }

std::string Extents::path(ExtentId id, PlaceKind kind) const {
  if (!id.is_foreign()) return extent_path(identity_.node, id, kind);
  const std::shared_ptr<Extents> peer = peer_of(id);
  return extent_path(peer ? peer->identity().node : "(unknown node)", id.there(), kind);
}

Status Extents::remove(ExtentId id, PlaceKind kind) {
  KVC_TRY(refuse_of_peer("removed"));
  const std::string path = extent_path(identity_.node, id, kind);
  let_go(id);  // NFS renames a file that is open, and removes it when it is closed
  {
    std::lock_guard lock(mutex_);
    if (syncing_ > 0) removed_.insert(id);
  }
  const Status removed = volume_->remove_file(path);
  {
    std::lock_guard lock(mutex_);
    if (!removed) return removed;
    ++removals_;
    removed_from_.insert(parent_of(path));
  }
  forget(id);
  return {};
}

void Extents::note_unsynced(ExtentId id, PlaceKind kind, FilePtr file) {
  std::lock_guard lock(mutex_);
  if (lost_.contains(id)) return;
  Unsynced& noted = unsynced_[id];
  noted.file = std::move(file);
  noted.kind = kind;
}

Status Extents::sync_all() {
  std::vector<std::pair<ExtentId, Unsynced>> files;
  std::vector<std::string> directories;
  std::vector<ExtentId> ahead;
  {
    std::lock_guard lock(mutex_);
    unsynced_directories_.merge(removed_from_);
    removed_from_.clear();
    files.assign(unsynced_.begin(), unsynced_.end());
    directories.assign(unsynced_directories_.begin(), unsynced_directories_.end());
    unsynced_.clear();
    unsynced_directories_.clear();
    if (syncing_ahead_.valid()) ahead.push_back(syncing_ahead_);
    ++syncing_;
  }
  Status status = sync_files(std::move(files), std::move(directories));
  end_syncing();
  Status waited = wait_for_syncs(ahead);
  return status ? waited : status;
}

Status Extents::sync_ahead() {
  std::vector<ExtentId> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, unsynced] : unsynced_) ids.push_back(id);
  }
  Status result;
  for (ExtentId id : ids) {
    Unsynced unsynced;
    {
      std::lock_guard lock(mutex_);
      auto found = unsynced_.find(id);
      if (found == unsynced_.end()) continue;
      unsynced = std::move(found->second);
      unsynced_.erase(found);
      syncing_ahead_ = id;
      ++syncing_;
    }
    if (Status status = sync_file(id, unsynced); !status && result) result = std::move(status);
    end_syncing();
    {
      std::lock_guard lock(mutex_);
      syncing_ahead_ = {};
    }
    synced_ahead_.notify_all();
  }
  return result;
}

// Those of `ids` that sync_ahead() has in hand; then the error of one that is lost.
Status Extents::wait_for_syncs(const std::vector<ExtentId>& ids) {
  std::unique_lock lock(mutex_);
  synced_ahead_.wait(lock, [&] {
    return !syncing_ahead_.valid() || std::find(ids.begin(), ids.end(), syncing_ahead_) == ids.end();
  });
  for (ExtentId id : ids)
    if (auto found = lost_.find(id); found != lost_.end()) return std::unexpected(found->second);
  return {};
}

Status Extents::sync(const std::vector<ExtentId>& ids) {
  std::vector<std::pair<ExtentId, Unsynced>> files;
  std::vector<std::string> directories;
  {
    std::lock_guard lock(mutex_);
    for (ExtentId id : ids) {
      auto found = unsynced_.find(id);
      if (found == unsynced_.end()) continue;
      files.emplace_back(*found);
      unsynced_.erase(found);
    }
    directories.assign(unsynced_directories_.begin(), unsynced_directories_.end());
    unsynced_directories_.clear();
    ++syncing_;
  }
  Status status = sync_files(std::move(files), std::move(directories));
  end_syncing();
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

void Extents::end_syncing() {
  std::lock_guard lock(mutex_);
  if (--syncing_ == 0) removed_.clear();
}

// An error if others removed the file. It can be read and synced still, but all in it is lost when it is closed.
Status Extents::look_for_file(ExtentId id, const Unsynced& unsynced) {
  const auto info = unsynced.file->info();
  if (!info || !info->is_removed) return {};
  if (const auto there = this->info(id, unsynced.kind); there || there.error().code != Code::kNotFound) return {};
  return fail(Code::kIo, path(id, unsynced.kind) + " was removed by others while it was open");
}

// By this store, while a sync is under way: nobody waits for what was in it.
bool Extents::removed_here(ExtentId id) {
  std::lock_guard lock(mutex_);
  return removed_.contains(id);
}

Status Extents::sync_file(ExtentId id, const Unsynced& unsynced) {
  Status status = unsynced.file->sync_data();
  if (status) status = look_for_file(id, unsynced);
  if (status || removed_here(id)) return {};
  status.error().message += ": what was written to it since it was synced last may be lost";
  log::error("{}", status.error().message);
  FilePtr dropped;  // closed after the lock is given up
  std::lock_guard lock(mutex_);
  if (unsynced.kind == PlaceKind::kRaw) {
    lost_raw_.try_emplace(id, std::move(status).error());
    return {};
  }
  lost_.try_emplace(id, status.error());
  if (auto again = unsynced_.find(id); again != unsynced_.end()) {  // noted meanwhile
    dropped = std::move(again->second.file);
    unsynced_.erase(again);
  }
  return status;
}

// All of them, also after an error; the first one is returned.
Status Extents::sync_files(std::vector<std::pair<ExtentId, Unsynced>> files, std::vector<std::string> directories) {
  Status result;
  for (auto& [id, unsynced] : files)
    if (Status status = sync_file(id, unsynced); !status && result) result = std::move(status);
  for (auto& directory : directories) {
    Status status = volume_->sync_directory(directory);
    if (status || status.error().code == Code::kNotFound) continue;  // removed: nothing was left in it
    if (result) result = std::move(status);
    std::lock_guard lock(mutex_);
    unsynced_directories_.insert(std::move(directory));
  }
  return result;
}

}  // namespace kvcachefs
