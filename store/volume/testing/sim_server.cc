#include "store/volume/testing/sim_server.h"

#include <cerrno>
#include <utility>

#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {
constexpr int64_t kFlushNs = 5'000'000'000;  // the disk of an `async` export lags this much behind
}  // namespace

SimServer::SimServer(const SimServerOptions& options)
    : options_(options), disk_(options.capacity_bytes), now_ns_(options.start_ns), flushed_ns_(options.start_ns) {}

void SimServer::advance_ns(int64_t by_ns) {
  now_ns_ += by_ns;
  if (!options_.async || now_ns_ - flushed_ns_ < kFlushNs) return;
  flushed_ns_ = now_ns_;
  disk_.sync_everything();
}

void SimServer::crash(uint64_t seed) {
  disk_ = disk_.after_power_loss({.seed = seed});
  ++starts_;
  flushed_ns_ = now_ns_;
  for (auto each = opens_.begin(); each != opens_.end();) {
    const bool there = disk_.has(each->first) && disk_.inode(each->first).names > 0;
    if (there) disk_.open_handle(each->first);
    each = there ? std::next(each) : opens_.erase(each);
  }
  std::erase_if(locks_, [this](const auto& each) { return !disk_.has(each.first); });
}

uint64_t SimServer::allocated_bytes(std::string_view in_path) const {
  uint64_t bytes = 0;
  for (const std::string& path : disk_.all_files())
    if (path.find(in_path) != std::string::npos) bytes += disk_.inode(*disk_.find(path)).content.allocated_bytes();
  return bytes;
}

// --- names ---

void SimServer::settle_names(std::string_view path) {
  if (!options_.async) static_cast<void>(disk_.sync_directory(parent_path(path)));
}

SimResult<uint64_t> SimServer::create(const std::string& path, bool is_directory) {
  auto made = disk_.create(path, is_directory);
  if (made) settle_names(path);
  return made;
}

SimResult<void> SimServer::remove(const std::string& path, bool is_directory) {
  auto removed = disk_.remove(path, is_directory);
  if (removed) settle_names(path);
  return removed;
}

SimResult<void> SimServer::rename(const std::string& from, const std::string& to) {
  auto renamed = disk_.rename(from, to);
  if (renamed) settle_names(to);
  return renamed;
}

// --- files ---

bool SimServer::is_there(uint64_t file) const { return disk_.has(file) && (disk_.inode(file).names > 0 || opens_.contains(file)); }

void SimServer::open(uint64_t file) {
  if (options_.nfs_version >= 4 && opens_[file]++ == 0) disk_.open_handle(file);
}

void SimServer::close(uint64_t file) {
  const auto found = opens_.find(file);
  if (found == opens_.end() || --found->second > 0) return;
  opens_.erase(found);
  disk_.close_handle(file);
}

template <class Change>
SimResult<void> SimServer::change(uint64_t file, Change apply) {
  if (!is_there(file)) return std::unexpected(ESTALE);
  SimResult<void> changed = apply();
  if (changed && !options_.async) disk_.sync(file);
  return changed;
}

SimResult<void> SimServer::write(uint64_t file, uint64_t offset, Bytes data) {
  return change(file, [&]() -> SimResult<void> {
    if (disk_.inode(file).content.missing_bytes(offset, data.size()) > free_bytes()) return std::unexpected(ENOSPC);
    return disk_.write(file, offset, std::move(data));
  });
}

SimResult<void> SimServer::truncate(uint64_t file, uint64_t size) {
  return change(file, [&]() -> SimResult<void> {
    disk_.truncate(file, size);
    return {};
  });
}

SimResult<void> SimServer::allocate(uint64_t file, uint64_t offset, uint64_t length) {
  return change(file, [&]() -> SimResult<void> {
    if (options_.nfs_version < 4) return std::unexpected(EOPNOTSUPP);
    if (disk_.inode(file).content.missing_bytes(offset, length) > free_bytes()) return std::unexpected(ENOSPC);
    return disk_.allocate(file, offset, length);
  });
}

SimResult<void> SimServer::punch(uint64_t file, uint64_t offset, uint64_t length) {
  return change(file, [&]() -> SimResult<void> {
    if (options_.nfs_version < 4) return std::unexpected(EOPNOTSUPP);
    disk_.punch(file, offset, length);
    return {};
  });
}

void SimServer::commit(uint64_t file) {
  if (!options_.async && is_there(file)) disk_.sync(file);
}

// --- locks ---

SimServer::Machine SimServer::add_machine() {
  silent_since_ns_.emplace_back();
  return static_cast<Machine>(silent_since_ns_.size() - 1);
}

void SimServer::set_silent(Machine machine, bool silent) {
  auto& since_ns = silent_since_ns_.at(machine);
  if (!silent) since_ns.reset();
  else if (!since_ns) since_ns = now_ns_;
}

void SimServer::rebooted(Machine machine) {
  std::erase_if(locks_, [machine](const auto& each) { return each.second.machine == machine; });
}

// v3 has no leases: locks of a machine that is gone stay until it comes back and reports.
bool SimServer::has_lost_lease(Machine machine) const {
  const auto& since_ns = silent_since_ns_.at(machine);
  return options_.nfs_version >= 4 && since_ns && now_ns_ - *since_ns > options_.lease_ns;
}

bool SimServer::lock(uint64_t file, Machine machine, uint64_t owner) {
  const auto [held, taken] = locks_.try_emplace(file, Held{machine, owner});
  if (taken || held->second.owner == owner) return true;
  if (!has_lost_lease(held->second.machine)) return false;
  held->second = {machine, owner};
  return true;
}

void SimServer::unlock(uint64_t file, uint64_t owner) {
  const auto found = locks_.find(file);
  if (found != locks_.end() && found->second.owner == owner) locks_.erase(found);
}

bool SimServer::holds(uint64_t file, uint64_t owner) const {
  const auto found = locks_.find(file);
  return found != locks_.end() && found->second.owner == owner;
}

}  // namespace kvcachefs
