#include "store/journal/memory_volume.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/volume/volume_path.h"

namespace kvcachefs {
namespace {

class MemoryFile final : public File {
 public:
  MemoryFile(MemoryVolume& volume, std::string path, std::shared_ptr<Bytes> content)
      : volume_(volume), path_(std::move(path)), content_(std::move(content)) {}

  const std::string& path() const override { return path_; }
  Result<size_t> read(std::span<std::byte> into, uint64_t offset) override {
    const std::lock_guard lock(volume_.mutex());
    if (offset >= content_->size()) return size_t{0};
    const size_t length = std::min(into.size(), content_->size() - static_cast<size_t>(offset));
    std::copy_n(content_->begin() + static_cast<ptrdiff_t>(offset), length, into.begin());
    return length;
  }
  Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) override {
    Bytes all;
    for (const auto piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
    const std::lock_guard lock(volume_.mutex());
    const bool full = volume_.writes_until_full == 0;
    if (volume_.writes_until_full > 0) --volume_.writes_until_full;
    if (full) all.resize(all.size() / 2);
    if (content_->size() < offset + all.size()) content_->resize(static_cast<size_t>(offset) + all.size());
    std::copy(all.begin(), all.end(), content_->begin() + static_cast<ptrdiff_t>(offset));
    if (full) return fail_errno(ENOSPC, "write " + path_);
    return {};
  }
  Status sync_data() override {
    const std::lock_guard lock(volume_.mutex());
    if (volume_.sync_fails) return fail_errno(EIO, "sync " + path_);
    ++volume_.file_syncs;
    return {};
  }
  Status truncate(uint64_t size_bytes) override {
    const std::lock_guard lock(volume_.mutex());
    if (volume_.writes_until_full == 0) return fail_errno(EIO, "truncate " + path_);
    content_->resize(static_cast<size_t>(size_bytes));
    return {};
  }
  Status allocate(uint64_t, uint64_t) override { return fail(Code::kUnsupported, "allocate"); }
  void will_need(uint64_t, uint64_t) override {}
  Status punch(uint64_t, uint64_t) override { return fail(Code::kUnsupported, "punch"); }
  Result<FileInfo> info() override {
    const std::lock_guard lock(volume_.mutex());
    return FileInfo{content_->size(), content_->size(), 0, false};
  }
  Result<uint64_t> next_data(uint64_t) override { return fail(Code::kUnsupported, "next_data"); }
  Result<uint64_t> next_hole(uint64_t) override { return fail(Code::kUnsupported, "next_hole"); }
  bool is_direct() const override { return false; }
  int descriptor() const override { return -1; }

 private:
  MemoryVolume& volume_;
  std::string path_;
  std::shared_ptr<Bytes> content_;
};

std::string parent_of(const std::string& path) { return std::string(parent_path(path)); }

}  // namespace

void MemoryVolume::put(const std::string& path, ByteSpan content) {
  const std::lock_guard lock(*mutex_);
  (void)make_directories(parent_of(path));
  files_[path] = std::make_shared<Bytes>(content.begin(), content.end());
}

Result<FilePtr> MemoryVolume::open(const std::string& path, OpenOptions options) {
  const std::lock_guard lock(*mutex_);
  auto found = files_.find(path);
  if (options.create_exclusive) {
    if (found != files_.end()) return fail_errno(EEXIST, path);
    if (!directories_.contains(parent_of(path))) return fail_errno(ENOENT, path);
    found = files_.emplace(path, std::make_shared<Bytes>()).first;
  }
  if (found == files_.end()) return fail_errno(ENOENT, path);
  return std::make_shared<MemoryFile>(*this, path, found->second);
}

Status MemoryVolume::make_directory(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  if (!directories_.insert(path).second) return fail_errno(EEXIST, path);
  return {};
}

Status MemoryVolume::make_directories(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  for (std::string at = path; !at.empty(); at = parent_of(at)) directories_.insert(at);
  return {};
}

Status MemoryVolume::remove_file(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  if (files_.erase(path) == 0) return fail_errno(ENOENT, path);
  return {};
}

Status MemoryVolume::remove_directory(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  KVC_ASSIGN(const auto entries, list(path));
  if (!entries.empty()) return fail_errno(ENOTEMPTY, path);
  directories_.erase(path);
  return {};
}

Status MemoryVolume::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(*mutex_);
  const auto found = files_.find(from);
  if (found == files_.end()) return fail_errno(ENOENT, from);
  auto content = found->second;
  files_.erase(found);
  files_[to] = std::move(content);
  return {};
}

Status MemoryVolume::publish(const std::string& from, const std::string& to) {
  const std::lock_guard lock(*mutex_);
  if (files_.contains(to)) return fail_errno(EEXIST, to);
  return rename(from, to);
}

Result<std::vector<DirectoryEntry>> MemoryVolume::list(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  if (!directories_.contains(path)) return fail_errno(ENOENT, path);
  std::vector<DirectoryEntry> entries;
  for (const auto& directory : directories_) {
    if (parent_of(directory) == path) entries.push_back({directory.substr(path.size() + 1), true});
  }
  for (const auto& [name, content] : files_) {
    if (parent_of(name) == path) entries.push_back({name.substr(path.size() + 1), false});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

Result<FileInfo> MemoryVolume::info(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  if (directories_.contains(path)) return FileInfo{0, 0, 0, true};
  const auto found = files_.find(path);
  if (found == files_.end()) return fail_errno(ENOENT, path);
  return FileInfo{found->second->size(), found->second->size(), 0, false};
}

Status MemoryVolume::sync_directory(const std::string& path) {
  const std::lock_guard lock(*mutex_);
  if (!directories_.contains(path)) return fail_errno(ENOENT, path);
  ++directory_syncs;
  return {};
}

Status MemoryVolume::sync_everything() { return {}; }

Result<SpaceInfo> MemoryVolume::space() { return SpaceInfo{}; }

Result<std::unique_ptr<VolumeLock>> MemoryVolume::lock(const std::string& path) {
  class Lock final : public VolumeLock {
   public:
    Lock(std::shared_ptr<std::recursive_mutex> mutex, std::shared_ptr<std::set<std::string>> locked, std::string path)
        : mutex_(std::move(mutex)), locked_(std::move(locked)), path_(std::move(path)) {}
    ~Lock() override {
      const std::lock_guard lock(*mutex_);
      locked_->erase(path_);
    }
    Status describe(std::string_view) override { return {}; }

   private:
    const std::shared_ptr<std::recursive_mutex> mutex_;
    const std::shared_ptr<std::set<std::string>> locked_;
    const std::string path_;
  };
  const std::lock_guard lock(*mutex_);
  if (!files_.contains(path)) put(path, {});
  if (!locked_->insert(path).second) return fail(Code::kBusy, path + ": locked");
  return std::make_unique<Lock>(mutex_, locked_, path);
}

void MemoryVolume::submit(std::vector<IoRequest> requests) {
  for (IoRequest& request : requests) request.done(fail(Code::kUnsupported, "memory volume has no engine"));
}

}  // namespace kvcachefs
