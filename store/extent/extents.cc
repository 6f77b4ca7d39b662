#include "store/extent/extents.h"

#include <algorithm>
#include <cerrno>
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
    : volume_(std::move(volume)), identity_(std::move(identity)), whose_(whose), open_(max_open_files) {}

// An extent has one writer; for a peer's extents that is the peer.
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
  const auto give_up_any = [&] { return close_idle() || sync_one() || (kind == PlaceKind::kRaw && give_up_spare()); };
  while (!made && lacks_descriptors(made.error()) && give_up_any()) made = make_file(kind);
  if (made || !lacks_files(made.error())) return made;
  if (auto spare = take_spare(kind)) return std::move(*spare);
  return made;
}

Result<Extents::Made> Extents::make_if_few_open(PlaceKind kind) {
  const size_t open = *made_open_;
  if (open >= most_made_open_) return fail_errno(EMFILE, fmt::format("{} extents are open, and not synced yet", open));
  return make(kind);
}

// Counts the file until its last reference goes, and asks for syncs once many are open.
FilePtr Extents::counted(FilePtr file) {
  File* const self = file.get();
  const size_t open = made_open_->fetch_add(1) + 1;
  if (open >= most_made_open_ / 2 && ask_for_syncs_ && !asked_for_syncs_.exchange(true)) ask_for_syncs_();
  return {self, [file = std::move(file), count = made_open_](File*) mutable {
            file.reset();
            count->fetch_sub(1);
          }};
}

// Fails if the file lies in another file system, mounted by others over a directory of this epoch: its files vanish when that is unmounted.
Status Extents::look_where_it_is(File& file, const std::string& path) {
  const auto made = file.info();
  uint64_t first = 0;
  if (!made || file_system_.compare_exchange_strong(first, made->file_system) || first == made->file_system) return {};
  return fail(Code::kIo, volume_->root() + "/" + parent_of(path) + ": others mounted another file system there, or above: unmount it");
}

// Makes its directory as well; once more, if others have removed that, or it was stale on NFS. Not the directory of the epoch: without it the volume is gone.
Result<FilePtr> Extents::open_new(const std::string& path, PlaceKind kind) {
  const bool direct = kind != PlaceKind::kRaw && volume_->features().direct_io;
  const std::string directory = parent_of(path), epoch = epoch_directory(identity_.node, identity_.epoch);
  const auto attempt = [&]() -> Result<FilePtr> {
    KVC_TRY(make_parents(directory));
    return volume_->open(path, {.writable = true, .create_exclusive = true, .direct = direct});
  };
  auto opened = attempt();
  if (opened || (opened.error().code != Code::kNotFound && opened.error().sys_errno != ESTALE)) return opened;
  if (const auto found = volume_->info(epoch); !found || !found->is_directory) return opened;
  {
    std::lock_guard lock(mutex_);
    directories_.clear();
  }
  const auto there = volume_->info(directory);  // an ESTALE alone can pass
  opened = attempt();
  if (opened && !there && there.error().code == Code::kNotFound)
    log::error("{}/{} was removed by others while the volume was mounted, and is made anew: chunks that were synced there are lost", volume_->root(), directory);
  return opened;
}

Result<Extents::Made> Extents::make_file(PlaceKind kind) {
  KVC_TRY(refuse_of_peer("made"));
  const ExtentId id{identity_.epoch, next_seq_.fetch_add(1)};
  const std::string path = extent_path(identity_.node, id, kind);
  auto opened = open_new(path, kind);
  if (!opened) {
    Error& error = opened.error();
    // Gives the number back, or failing attempts would use up numbers, and in time directories. After other errors the file may exist: the number is not used again.
    uint64_t unused = id.seq + 1;
    if (lacks_files(error) || is_not_there(error)) next_seq_.compare_exchange_strong(unused, id.seq);
    if (is_not_there(error)) error.code = Code::kIo;  // a client would take it for its own file
    return std::unexpected(std::move(error));
  }
  FilePtr file = counted(std::move(*opened));
  kill_point("extent-made");
  if (Status stays = look_where_it_is(*file, path); !stays) {
    static_cast<void>(volume_->remove_file(path));
    return std::unexpected(std::move(stays).error());
  }
  if (kind == PlaceKind::kPacked) {
    alignas(kBlockBytes) std::byte block[kBlockBytes] = {};
    const Bytes header = encode_pack_header({identity_, id.seq});
    std::copy(header.begin(), header.end(), block);
    const std::span<const std::byte> piece(block);
    if (auto written = file->write({&piece, 1}, 0); !written) {
      static_cast<void>(volume_->remove_file(path));  // else each attempt would leave a file behind
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
  return open_.find(id);
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
    if (FilePtr file = written(id)) return file;
    opened = with_descriptor(open_file);
  }
  KVC_ASSIGN(FilePtr file, std::move(opened));
  FilePtr dropped;  // closed after the lock is released
  std::lock_guard lock(mutex_);
  if (removals != removals_) return file;
  return open_.add(id, std::move(file), dropped);
}

Result<FilePtr> Extents::open_fresh(ExtentId id, PlaceKind kind) {
  if (id.is_foreign()) {
    const std::shared_ptr<Extents> peer = peer_of(id);
    if (!peer) return unknown_node(id);
    return peer->open_fresh(id.there(), kind);
  }
  return with_descriptor([&] {
    return volume_->open(extent_path(identity_.node, id, kind), {.direct = kind != PlaceKind::kRaw && volume_->features().direct_io});
  });
}

Result<FilePtr> Extents::open_buffered(ExtentId id, PlaceKind kind) {
  return volume_->open(extent_path(identity_.node, id, kind), {});
}

Result<FilePtr> Extents::open_for_punch(ExtentId id) {
  KVC_TRY(refuse_of_peer("punched"));
  return with_descriptor([&] { return volume_->open(extent_path(identity_.node, id, PlaceKind::kPacked), {.writable = true}); });
}

void Extents::close_cached(ExtentId id) {
  if (id.is_foreign()) {
    if (const std::shared_ptr<Extents> peer = peer_of(id)) peer->close_cached(id.there());
    return;
  }
  FilePtr dropped;  // closed after the lock is released
  std::lock_guard lock(mutex_);
  dropped = open_.take(id);
}

std::vector<ExtentId> Extents::cached_ids() {
  std::lock_guard lock(mutex_);
  return open_.ids();
}

void Extents::let_go(ExtentId id) {
  close_cached(id);
  FilePtr unsynced;  // closed after the lock is released
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

Result<FileInfo> Extents::info(ExtentId id, PlaceKind kind) {
  return with_descriptor([&] { return volume_->info(path(id, kind)); });
}

bool Extents::was_removed(ExtentId id, PlaceKind kind) {
  const std::string file = path(id, kind);
  const std::string directory = file.substr(0, file.rfind('/'));
  const auto info_of = [this](const std::string& of) { return with_descriptor([&] { return volume_->info(of); }); };
  const auto above = info_of(directory), found = info_of(file), above_still = info_of(directory);  // it may be away for a moment
  return !found && found.error().code == Code::kNotFound && above && above->is_directory && above_still && above_still->is_directory;
}

std::string Extents::path(ExtentId id, PlaceKind kind) const {
  if (!id.is_foreign()) return extent_path(identity_.node, id, kind);
  const std::shared_ptr<Extents> peer = peer_of(id);
  return extent_path(peer ? peer->identity().node : "(unknown node)", id.there(), kind);
}

Status Extents::remove(ExtentId id, PlaceKind kind) {
  KVC_TRY(refuse_of_peer("removed"));
  const std::string path = extent_path(identity_.node, id, kind);
  let_go(id);  // NFS only renames a file that is open, and removes it when it is closed
  {
    std::lock_guard lock(mutex_);
    if (!in_hand_.empty()) removed_.insert(id);
  }
  const Status removed = with_descriptor([&] { return volume_->remove_file(path); });
  {
    std::lock_guard lock(mutex_);
    if (!removed) return removed;
    ++removals_;
    removed_from_.insert(parent_of(path));
  }
  forget(id);
  return {};
}

}  // namespace kvcachefs
