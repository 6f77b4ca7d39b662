#include "store/volume/testing/sim_client.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/volume/sim_file.h"
#include "store/volume/testing/sim_client_file.h"
#include "store/volume/volume_path.h"

namespace kvcachefs {

SimClient::SimClient(std::shared_ptr<SimServer> server, std::string name)
    : server_(std::move(server)),
      name_(std::move(name)),
      machine_(server_->add_machine()),
      features_{.direct_io = true,
                .punch_hole = server_->options().nfs_version >= 4,
                .io_uring = false,
                .network = true,
                .filesystem = server_->options().nfs_version >= 4 ? "nfs4" : "nfs"} {}

std::string SimClient::place(const std::string& path) const { return place_in(name_, path); }

// --- the machine and its process ---

void SimClient::cut() {
  cut_ = true;
  server_->set_silent(machine_, true);
}

void SimClient::heal() {
  cut_ = false;
  server_->set_silent(machine_, false);
  for (const auto& [file, owner] : std::exchange(unlocks_, {})) server_->unlock(file, owner);
}

void SimClient::kill(LastRequest last) {
  last_ = last;
  killed_ = true;
  ends_with_request_ = last != LastRequest::kNotMade;
  for (const auto& [owner, file] : std::exchange(locks_, {})) {
    if (cut_) unlocks_.emplace_back(file, owner);
    else server_->unlock(file, owner);
  }
}

void SimClient::lose_power(uint64_t seed) {
  locks_.clear();  // the server keeps them until this machine is back
  lost_power_ = true;
  server_->set_silent(machine_, true);
  kill();
  unlocks_.clear();
  for (auto& [file, cached] : files_) {
    std::erase_if(cached.dirty, [&](uint64_t) { return ((seed = seed * 6364136223846793005ULL + 1442695040888963407ULL) >> 40) % 2 == 0; });
    static_cast<void>(write_back(file, ""));
    cached.pages.clear();
    cached.until_ns = INT64_MIN;
    cached.removed_as.clear();  // nobody is left to remove it
  }
  absent_ns_.clear();
  names_.clear();
}

void SimClient::restart() {
  if (std::exchange(lost_power_, false)) {
    server_->set_silent(machine_, cut_);
    server_->rebooted(machine_);
  }
  ++life_;
  killed_ = ends_with_request_ = false;
  locks_.clear();
}

// --- requests ---

Status SimClient::begin(uint64_t life, Kind kind, const std::string& path, uint64_t offset, uint64_t length) {
  const auto gone = [&] { return (killed_ && !ends_with_request_) || life != life_; };
  if (gone() || killed_) return fail_errno(EIO, place(path) + ": the process was killed");
  ++requests_;
  if (before_) before_({.kind = kind, .number = requests_, .path = path, .offset = offset, .length = length});
  if (gone()) return fail_errno(EIO, place(path) + ": the process was killed");
  if (cut_) {
    ends_with_request_ = false;
    return fail_errno(ETIMEDOUT, place(path) + ": the server does not answer");
  }
  return {};
}

// Delivers the answer, if the process still lives.
Status SimClient::end(const std::string& path) {
  ends_with_request_ = false;
  if (killed_) return fail_errno(EIO, place(path) + ": the process was killed");
  return {};
}

// --- caches ---

const std::string* SimClient::remembered_absent(const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const auto found = absent_ns_.find(path.substr(0, end));
    if (found == absent_ns_.end()) continue;
    if (now_ns() - found->second < server_->options().attributes_ns) return &found->first;
    absent_ns_.erase(found);
  }
  return nullptr;
}

// Remembers the first name on the path that is absent.
void SimClient::remember_absent(const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (server_->disk().find(part)) continue;
    absent_ns_[part] = now_ns();
    return;
  }
}

SimClient::Cached& SimClient::cached(uint64_t file) { return files_[file]; }

FileInfo SimClient::fresh_info(uint64_t file) const {
  const SimInode& inode = server_->disk().inode(file);
  FileInfo info = to_file_info(inode, file);
  info.is_removed = inode.names == 0;
  return info;
}

// Stores the server's current attributes. Keeps cached pages if nobody, or only this machine, has changed the file.
void SimClient::take_in(uint64_t file, bool by_this) {
  Cached& known = cached(file);
  if (!server_->disk().has(file)) return;
  const FileInfo fresh = fresh_info(file);
  if (by_this || fresh.mtime_ns != known.info.mtime_ns)
    std::erase_if(known.pages, [&](const auto& each) { return !known.dirty.contains(each.first); });
  const uint64_t own_size = known.dirty.empty() ? 0 : known.info.size_bytes;
  known.info = fresh;
  known.info.size_bytes = std::max(own_size, fresh.size_bytes);
  known.until_ns = now_ns() + server_->options().attributes_ns;
}

Status SimClient::write_back(uint64_t file, const std::string& path) {
  Cached& known = cached(file);
  if (known.dirty.empty()) return {};
  for (const uint64_t index : known.dirty) {
    const uint64_t at = index * kBlockBytes;
    Bytes bytes = known.pages.at(index);
    bytes.resize(static_cast<size_t>(std::min<uint64_t>(kBlockBytes, known.info.size_bytes - std::min(at, known.info.size_bytes))));
    if (const auto written = server_->write(file, at, std::move(bytes)); !written && !path.empty()) {
      known.dirty.clear();  // reported once
      known.pages.clear();
      take_in(file, true);
      return fail_errno(written.error(), place(path) + ": write back");
    }
  }
  known.dirty.clear();
  if (server_->disk().has(file)) {
    known.info = fresh_info(file);
    known.until_ns = now_ns() + server_->options().attributes_ns;
  }
  return {};
}

void SimClient::opened(uint64_t file) {
  ++cached(file).opens;
  server_->open(file);
}

void SimClient::closed(uint64_t file) {
  Cached& known = cached(file);
  server_->close(file);
  if (--known.opens > 0) return;
  if (server_->is_there(file)) static_cast<void>(write_back(file, ""));
  if (!known.removed_as.empty()) static_cast<void>(server_->remove(known.removed_as, false));
  if (!server_->is_there(file)) files_.erase(file);
}

// --- names ---

Status SimClient::look_up(const std::string& path, uint64_t& file, const char* verb) {
  if (remembered_absent(path)) return fail_errno(ENOENT, place(path) + ": " + verb);
  const auto found = server_->disk().find(path);
  if (!found && found.error() == ENOENT) remember_absent(path);
  if (!found) return fail_errno(found.error(), place(path) + ": " + verb);
  file = *found;
  return {};
}

Result<FilePtr> SimClient::open(const std::string& path, OpenOptions options) {
  KVC_TRY(check_path(path));
  if (options.create_exclusive) {
    KVC_TRY(begin(life_, Kind::kCreate, path));
    const auto made = server_->create(path, false);
    KVC_TRY(end(path));
    if (!made) return fail_errno(made.error(), place(path) + ": create");
    forget_absent(path);
    take_in(*made, true);
    return std::make_shared<SimClientFile>(shared_from_this(), *made, path, true, options.direct);
  }
  KVC_TRY(begin(life_, Kind::kOpen, path));
  uint64_t file = 0;
  KVC_TRY(look_up(path, file, "open"));
  KVC_TRY(end(path));
  if (server_->disk().inode(file).is_directory) return fail_errno(EISDIR, place(path) + ": open");
  take_in(file, false);
  return std::make_shared<SimClientFile>(shared_from_this(), file, path, options.writable, options.direct);
}

template <class Work>
Status SimClient::change_names(Kind kind, const std::string& path, Work work) {
  KVC_TRY(check_path(path));
  KVC_TRY(begin(life_, kind, path));
  if (repeat_next_) static_cast<void>(work());
  repeat_next_ = false;
  const SimResult<void> done = work();
  names_.clear();
  KVC_TRY(end(path));
  if (!done) return fail_errno(done.error(), place(path) + ": " + call_kind_name(kind));
  return {};
}

Status SimClient::make_directory(const std::string& path) {
  return change_names(Kind::kMakeDirectory, path, [&]() -> SimResult<void> {
    const auto made = server_->create(path, true);
    if (!made) return std::unexpected(made.error());
    forget_absent(path);
    return {};
  });
}

Status SimClient::make_directories(const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const auto made = make_directory(path.substr(0, end));
    if (!made && made.error().code != Code::kExists) return made;
  }
  return {};
}

// v3: renames a file that this machine has open, instead of removing it.
void SimClient::move_aside(const std::string& path) {
  if (server_->options().nfs_version >= 4) return;
  const auto found = server_->disk().find(path);
  if (!found) return;
  const auto known = files_.find(*found);
  if (known == files_.end() || known->second.opens == 0) return;
  std::string aside(parent_path(path));
  aside += (aside.empty() ? ".nfs" : "/.nfs") + name_ + std::to_string(++moved_aside_);
  if (server_->rename(path, aside)) known->second.removed_as = aside;
}

Status SimClient::remove_file(const std::string& path) {
  return change_names(Kind::kRemoveFile, path, [&]() -> SimResult<void> {
    const auto found = server_->disk().find(path);
    move_aside(path);
    if (found && !server_->disk().find(path)) return {};
    return server_->remove(path, false);
  });
}

Status SimClient::remove_directory(const std::string& path) {
  return change_names(Kind::kRemoveDirectory, path, [&] { return server_->remove(path, true); });
}

Status SimClient::rename(const std::string& from, const std::string& to) {
  KVC_TRY(check_path(to));
  return change_names(Kind::kRename, from, [&]() -> SimResult<void> {
    if (server_->disk().find(from)) move_aside(to);
    forget_absent(to);
    return server_->rename(from, to);
  });
}

// A link, then the removal of the other name. If the answer is kExists, the number of links tells whether our own link had succeeded.
Status SimClient::publish(const std::string& from, const std::string& to) {
  KVC_TRY(check_path(to));
  repeat_next_ = false;
  return change_names(Kind::kRename, from, [&]() -> SimResult<void> {
    if (server_->disk().find(to)) return std::unexpected(EEXIST);
    forget_absent(to);
    return server_->rename(from, to);
  });
}

Result<std::vector<DirectoryEntry>> SimClient::list(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  KVC_TRY(begin(life_, Kind::kList, path));
  uint64_t found = 0;
  if (is_root_path(path)) found = *server_->disk().find("");
  else KVC_TRY(look_up(path, found, "list"));
  KVC_TRY(end(path));
  const SimInode& directory = server_->disk().inode(found);
  if (!directory.is_directory) return fail_errno(ENOTDIR, place(path) + ": list");
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, id] : directory.entries) {
    entries.push_back({name, server_->disk().inode(id).is_directory});
    forget_absent(is_root_path(path) ? name : path + "/" + name);
  }
  return entries;
}

Result<FileInfo> SimClient::info(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  if (killed_) return fail_errno(EIO, place(path) + ": the process was killed");
  if (const auto known = names_.find(path); known != names_.end() && known->second.second > now_ns())
    if (const auto file = files_.find(known->second.first); file != files_.end() && file->second.until_ns > now_ns()) return file->second.info;
  KVC_TRY(begin(life_, Kind::kOpen, path));
  uint64_t found = 0;
  if (is_root_path(path)) found = *server_->disk().find("");
  else KVC_TRY(look_up(path, found, "stat"));
  KVC_TRY(write_back(found, path));
  KVC_TRY(end(path));
  take_in(found, false);
  if (!is_root_path(path)) names_[path] = {found, now_ns() + server_->options().attributes_ns};
  return cached(found).info;
}

Status SimClient::sync_directory(const std::string& path) {  // names are on the medium when the server has answered (or it says so)
  KVC_TRY(begin(life_, Kind::kSyncDirectory, path));
  return end(path);
}

Status SimClient::sync_everything() {
  KVC_TRY(begin(life_, Kind::kSyncEverything, ""));
  for (auto& [file, known] : files_)
    if (server_->is_there(file)) KVC_TRY(write_back(file, name_));
  return end("");
}

Result<SpaceInfo> SimClient::space() {
  KVC_TRY(begin(life_, Kind::kOpen, ""));
  return SpaceInfo{.total_bytes = server_->options().capacity_bytes, .available_bytes = server_->free_bytes()};
}

Result<std::unique_ptr<VolumeLock>> SimClient::lock(const std::string& path) {
  static uint64_t owners = 0;
  auto file = open(path, {.writable = true});
  if (!file && file.error().code == Code::kNotFound) {
    file = open(path, {.create_exclusive = true});
    forget_absent(path);
  }
  if (!file && file.error().code == Code::kExists) file = open(path, {.writable = true});  // made by another process meanwhile
  if (!file) return std::unexpected(std::move(file).error());
  KVC_TRY(begin(life_, Kind::kLock, path));
  const auto there = server_->disk().find(path);
  const uint64_t owner = ++owners;
  const bool taken = there && server_->lock(*there, machine_, owner);
  if (Status answered = end(path); !answered) {
    if (taken) server_->unlock(*there, owner);  // the kernel closes the process's files
    return std::unexpected(std::move(answered).error());
  }
  if (!there) return fail(Code::kBusy, place(path) + ": removed while it was locked here");
  if (taken) return std::make_unique<SimClientLock>(shared_from_this(), *there, owner, std::move(*file));
  Bytes content(1024);
  content.resize(server_->disk().inode(*there).content.read(content, 0));
  return fail(Code::kBusy, place(path) + ": locked by " + (content.empty() ? "an unknown holder" : std::string(as_text(content))));
}

namespace {

Result<size_t> run_inline(IoRequest& request) {
  size_t total = 0;
  if (request.kind == IoRequest::Kind::kWrite) {
    const std::vector<std::span<const std::byte>> pieces(request.pieces.begin(), request.pieces.end());
    for (const auto piece : pieces) total += piece.size();
    KVC_TRY(request.file->write(pieces, request.offset));
    return total;
  }
  for (const auto piece : request.pieces) {
    KVC_ASSIGN(const size_t got, request.file->read(piece, request.offset + total));
    total += got;
    if (got < piece.size()) break;
  }
  return total;
}

}  // namespace

void SimClient::submit(std::vector<IoRequest> requests) {
  for (IoRequest& request : requests) {
    IoRequest current = std::move(request);
    auto result = run_inline(current);
    current.done(std::move(result));
  }
}

}  // namespace kvcachefs
