// A simulated volume: names, locks, requests, and crashes.
#include <algorithm>
#include <cerrno>
#include <mutex>

#include "store/volume/fault_volume.h"
#include "store/volume/io_engine.h"
#include "store/volume/sim_core.h"
#include "store/volume/sim_file.h"
#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {

constexpr size_t kMostHolderBytes = 1024;
const std::string kRootName = "sim";

std::string place_of(const std::string& path) { return place_in(kRootName, path); }

class SimLock final : public VolumeLock {
 public:
  SimLock(SimCorePtr core, uint64_t inode, FilePtr file)
      : core_(std::move(core)), file_(std::move(file)), inode_(inode) {}
  ~SimLock() override {
    const std::lock_guard lock(core_->mutex);
    core_->locked.erase(inode_);
  }
  Status describe(std::string_view holder) override {
    const std::span<const std::byte> pieces[] = {as_bytes(holder)};
    KVC_TRY(file_->truncate(0));
    KVC_TRY(file_->write(pieces, 0));
    return file_->sync_data();
  }

 private:
  SimCorePtr core_;
  FilePtr file_;
  uint64_t inode_;
};

class SimVolumeImpl final : public SimVolume {
 public:
  SimVolumeImpl(SimState state, const SimVolumeOptions& options)
      : core_(std::make_shared<SimCore>(std::move(state), options)),
        features_{.direct_io = options.direct_io,
                  .punch_hole = options.punch_hole,
                  .io_uring = false,
                  .file_ids = true,
                  .network = options.network,
                  .filesystem = "sim"} {}

  const VolumeFeatures& features() const override { return features_; }
  const std::string& root() const override { return kRootName; }
  Result<FilePtr> open(const std::string& path, OpenOptions options) override;
  Status make_directory(const std::string& path) override;
  Status make_directories(const std::string& path) override;
  Status remove_file(const std::string& path) override { return remove(path, false); }
  Status remove_directory(const std::string& path) override { return remove(path, true); }
  Status rename(const std::string& from, const std::string& to) override;
  Status publish(const std::string& from, const std::string& to) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  Result<FileInfo> info(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Status sync_everything() override;
  Result<SpaceInfo> space() override;
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override;
  void submit(std::vector<IoRequest> requests) override;
  void drain() override { counter_.wait(); }

  std::shared_ptr<SimVolume> cut_power(const PowerLoss& loss) override;
  std::shared_ptr<SimVolume> crash_process() override;
  uint64_t mutating_calls() const override;
  void stop_at(uint64_t number, int64_t torn_bytes) override;
  bool stopped() const override;
  Status lose_unsynced(const std::string& path) override;
  Status corrupt(const std::string& path, uint64_t offset, std::byte xor_with) override;
  Status cut(const std::string& path, uint64_t size_bytes) override;
  std::vector<std::string> all_files() const override;
  unsigned open_files(const std::string& path) const override;

 private:
  Status remove(const std::string& path, bool is_directory);
  Result<uint64_t> find_file(const std::string& path, const std::string& verb) const;  // caller holds the mutex

  SimCorePtr core_;
  VolumeFeatures features_;
  RequestCounter counter_;
};

Result<uint64_t> SimVolumeImpl::find_file(const std::string& path, const std::string& verb) const {
  const auto found = core_->state.find(path);
  if (!found) return fail_errno(found.error(), place_of(path) + ": " + verb);
  if (core_->state.inode(*found).is_directory) return fail_errno(EISDIR, place_of(path) + ": " + verb);
  return *found;
}

Result<FilePtr> SimVolumeImpl::open(const std::string& path, OpenOptions options) {
  KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  const bool direct = options.direct && features_.direct_io;
  if (options.create_exclusive) {
    if (!core_->may_mutate()) return fail_errno(EIO, place_of(path) + ": create");
    const auto made = core_->state.create(path, false);
    if (!made) return fail_errno(made.error(), place_of(path) + ": create");
    return std::make_shared<SimFile>(core_, *made, place_of(path), true, direct);
  }
  if (!core_->alive()) return fail_errno(EIO, place_of(path) + ": open");
  KVC_ASSIGN(const uint64_t found, find_file(path, "open"));
  return std::make_shared<SimFile>(core_, found, place_of(path), options.writable, direct);
}

Status SimVolumeImpl::make_directory(const std::string& path) {
  KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  if (!core_->may_mutate()) return fail_errno(EIO, place_of(path) + ": make directory");
  if (const auto made = core_->state.create(path, true); !made)
    return fail_errno(made.error(), place_of(path) + ": make directory");
  return {};
}

// Counts one mutating call for each missing directory.
Status SimVolumeImpl::make_directories(const std::string& path) {
  KVC_TRY(check_path(path));
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    const auto there = info(part);
    if (there && there->is_directory) continue;
    if (there) return fail_errno(ENOTDIR, place_of(part) + ": make directory");
    const auto made = make_directory(part);
    if (!made && made.error().code != Code::kExists) return made;
  }
  return {};
}

Status SimVolumeImpl::remove(const std::string& path, bool is_directory) {
  KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  const std::string place = place_of(path) + (is_directory ? ": remove directory" : ": remove");
  if (!core_->may_mutate()) return fail_errno(EIO, place);
  if (const auto removed = core_->state.remove(path, is_directory); !removed) return fail_errno(removed.error(), place);
  return {};
}

Status SimVolumeImpl::rename(const std::string& from, const std::string& to) {
  KVC_TRY(check_path(from));
  KVC_TRY(check_path(to));
  const std::lock_guard lock(core_->mutex);
  const std::string place = place_of(from) + ": rename to " + place_of(to);
  if (!core_->may_mutate()) return fail_errno(EIO, place);
  if (const auto renamed = core_->state.rename(from, to); !renamed) return fail_errno(renamed.error(), place);
  return {};
}

Status SimVolumeImpl::publish(const std::string& from, const std::string& to) {
  KVC_TRY(check_path(from));
  KVC_TRY(check_path(to));
  const std::lock_guard lock(core_->mutex);
  const std::string place = place_of(from) + ": publish as " + place_of(to);
  if (!core_->may_mutate()) return fail_errno(EIO, place);
  if (core_->state.find(to)) return fail_errno(EEXIST, place);
  if (const auto renamed = core_->state.rename(from, to); !renamed) return fail_errno(renamed.error(), place);
  return {};
}

Result<std::vector<DirectoryEntry>> SimVolumeImpl::list(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, place_of(path) + ": list");
  const auto found = core_->state.find(path);
  if (!found) return fail_errno(found.error(), place_of(path) + ": list");
  const SimInode& directory = core_->state.inode(*found);
  if (!directory.is_directory) return fail_errno(ENOTDIR, place_of(path) + ": list");
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, id] : directory.entries) entries.push_back({name, core_->state.inode(id).is_directory});
  return entries;
}

Result<FileInfo> SimVolumeImpl::info(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, place_of(path) + ": stat");
  const auto found = core_->state.find(path);
  if (!found) return fail_errno(found.error(), place_of(path) + ": stat");
  return to_file_info(core_->state.inode(*found), *found);
}

Status SimVolumeImpl::sync_directory(const std::string& path) {
  if (!is_root_path(path)) KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  if (!core_->may_mutate()) return fail_errno(EIO, place_of(path) + ": sync directory");
  if (const auto synced = core_->state.sync_directory(path); !synced)
    return fail_errno(synced.error(), place_of(path) + ": sync directory");
  return {};
}

Status SimVolumeImpl::sync_everything() {
  const std::lock_guard lock(core_->mutex);
  if (!core_->may_mutate()) return fail_errno(EIO, kRootName + ": sync everything");
  core_->state.sync_everything();
  return {};
}

Result<SpaceInfo> SimVolumeImpl::space() {
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, kRootName + ": statvfs");
  const uint64_t total = core_->state.capacity_bytes();
  return SpaceInfo{.total_bytes = total, .available_bytes = total - std::min(total, core_->state.used_bytes())};
}

Result<std::unique_ptr<VolumeLock>> SimVolumeImpl::lock(const std::string& path) {
  auto file = open(path, {.writable = true});
  if (!file && file.error().code == Code::kNotFound) file = open(path, {.create_exclusive = true});
  if (!file && file.error().code == Code::kExists) file = open(path, {.writable = true});  // made by another process meanwhile
  if (!file) return std::unexpected(std::move(file).error());
  const std::lock_guard lock(core_->mutex);
  KVC_ASSIGN(const uint64_t inode, find_file(path, "lock"));
  if (core_->locked.insert(inode).second) return std::make_unique<SimLock>(core_, inode, std::move(*file));
  Bytes content(kMostHolderBytes);
  content.resize(core_->state.inode(inode).content.read(content, 0));
  const std::string holder = content.empty() ? "an unknown holder" : std::string(as_text(content));
  return fail(Code::kBusy, place_of(path) + ": locked by " + holder);
}

Result<size_t> run_inline(IoRequest& request) {
  if (request.kind == IoRequest::Kind::kWrite) {
    size_t total = 0;
    for (const auto piece : request.pieces) total += piece.size();
    const std::vector<std::span<const std::byte>> pieces(request.pieces.begin(), request.pieces.end());
    KVC_TRY(request.file->write(pieces, request.offset));
    return total;
  }
  size_t total = 0;
  for (const auto piece : request.pieces) {
    KVC_ASSIGN(const size_t got, request.file->read(piece, request.offset + total));
    total += got;
    if (got < piece.size()) break;
  }
  return total;
}

void SimVolumeImpl::submit(std::vector<IoRequest> requests) {
  const uint64_t generation = counter_.begin(requests.size());
  for (auto& request : requests) {
    IoRequest current = std::move(request);
    auto result = run_inline(current);
    current.done(std::move(result));
    current = {};
    counter_.end(generation);
  }
}

std::shared_ptr<SimVolume> SimVolumeImpl::cut_power(const PowerLoss& loss) {
  const std::lock_guard lock(core_->mutex);
  core_->dead = true;
  return std::make_shared<SimVolumeImpl>(core_->state.after_power_loss(loss), core_->options);
}

std::shared_ptr<SimVolume> SimVolumeImpl::crash_process() {
  const std::lock_guard lock(core_->mutex);
  core_->dead = true;
  return std::make_shared<SimVolumeImpl>(core_->state.after_crash(), core_->options);
}

uint64_t SimVolumeImpl::mutating_calls() const {
  const std::lock_guard lock(core_->mutex);
  return core_->calls;
}

void SimVolumeImpl::stop_at(uint64_t number, int64_t torn_bytes) {
  const std::lock_guard lock(core_->mutex);
  core_->stop_number = number;
  core_->torn_bytes = torn_bytes;
}

bool SimVolumeImpl::stopped() const {
  const std::lock_guard lock(core_->mutex);
  return core_->stopped;
}

Status SimVolumeImpl::lose_unsynced(const std::string& path) {
  KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  KVC_ASSIGN(const uint64_t inode, find_file(path, "lose unsynced"));
  core_->state.lose_unsynced(inode);
  return {};
}

Status SimVolumeImpl::corrupt(const std::string& path, uint64_t offset, std::byte xor_with) {
  KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  KVC_ASSIGN(const uint64_t inode, find_file(path, "corrupt"));
  if (offset >= core_->state.inode(inode).content.size())
    return fail(Code::kInvalid, place_of(path) + ": corrupt: no byte at " + std::to_string(offset));
  core_->state.flip(inode, offset, xor_with);
  return {};
}

Status SimVolumeImpl::cut(const std::string& path, uint64_t size_bytes) {
  KVC_TRY(check_path(path));
  const std::lock_guard lock(core_->mutex);
  KVC_ASSIGN(const uint64_t inode, find_file(path, "cut"));
  if (size_bytes > core_->state.inode(inode).content.size())
    return fail(Code::kInvalid, place_of(path) + ": cut: shorter than " + std::to_string(size_bytes) + " bytes");
  core_->state.cut(inode, size_bytes);
  return {};
}

std::vector<std::string> SimVolumeImpl::all_files() const {
  const std::lock_guard lock(core_->mutex);
  return core_->state.all_files();
}

unsigned SimVolumeImpl::open_files(const std::string& path) const {
  const std::lock_guard lock(core_->mutex);
  const auto inode = find_file(path, "count");
  return inode ? core_->state.inode(*inode).handles : 0;
}

}  // namespace

std::shared_ptr<SimVolume> make_sim_volume(const SimVolumeOptions& options) {
  return std::make_shared<SimVolumeImpl>(SimState(options.capacity_bytes), options);
}

}  // namespace kvcachefs
