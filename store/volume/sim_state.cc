#include "store/volume/sim_state.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kRootInode = 1;

std::unexpected<int> error(int sys_errno) { return std::unexpected(sys_errno); }

void apply(SimContent& content, const SimChange& change) {
  switch (change.kind) {
    case SimChange::Kind::kWrite: content.write(change.offset, *change.data); break;
    case SimChange::Kind::kTruncate: content.truncate(change.offset); break;
    case SimChange::Kind::kAllocate: content.allocate(change.offset, change.length); break;
    case SimChange::Kind::kPunch: content.punch(change.offset, change.length); break;
  }
}

bool is_below(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/';
}

// splitmix64, because the distributions of the standard generators differ between libraries.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t stream) : state_(seed * 0x9e3779b97f4a7c15ULL ^ (stream + 1) * 0xd1342543de82ef95ULL) {}
  bool keep(double probability) {
    const uint64_t sample = next() >> 11;  // 53 bits: exact in a double
    return static_cast<double>(sample) < probability * static_cast<double>(uint64_t{1} << 53);
  }

 private:
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  uint64_t state_;
};

// A write on its way to the medium: each piece may arrive or not, and the new size may arrive without the data.
void apply_torn(SimContent& content, const SimChange& change, const SimVolume::PowerLoss& loss, Dice& dice) {
  const Bytes& data = *change.data;
  const uint64_t tear = std::max<uint64_t>(1, loss.tear_bytes);
  const uint64_t end = change.offset + data.size();
  for (uint64_t at = change.offset; at < end;) {
    const uint64_t next = std::min(end, align_down(at, tear) + tear);
    const auto piece = ByteSpan(data).subspan(static_cast<size_t>(at - change.offset), static_cast<size_t>(next - at));
    if (dice.keep(loss.keep_probability)) content.write(at, piece);
    at = next;
  }
  if (end > content.size() && dice.keep(loss.keep_probability)) content.truncate(end);
}

SimContent content_after_loss(const SimInode& inode, const SimVolume::PowerLoss& loss, Dice dice) {
  SimContent content = inode.durable_content;
  for (const SimChange& change : inode.pending) {
    if (change.kind == SimChange::Kind::kWrite)
      apply_torn(content, change, loss, dice);
    else if (dice.keep(loss.keep_probability))
      apply(content, change);
  }
  return content;
}

}  // namespace

SimState::SimState(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes), next_inode_(kRootInode + 1) {
  SimInode& root = inodes_[kRootInode];
  root.is_directory = true;
  root.names = 1;
}

SimResult<SimState::Parent> SimState::find_parent(std::string_view path) const {
  uint64_t directory = kRootInode;
  for (size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
    const auto next = find_in({directory, path.substr(0, slash)});
    if (!next) return error(next.error());
    directory = *next;
    if (!inodes_.at(directory).is_directory) return error(ENOTDIR);
    path.remove_prefix(slash + 1);
  }
  return Parent{directory, path};
}

SimResult<uint64_t> SimState::find_in(const Parent& parent) const {
  const auto& entries = inodes_.at(parent.directory).entries;
  const auto found = entries.find(parent.name);
  if (found == entries.end()) return error(ENOENT);
  return found->second;
}

SimResult<uint64_t> SimState::find(std::string_view path) const {
  if (is_root_path(path)) return kRootInode;
  const auto parent = find_parent(path);
  if (!parent) return error(parent.error());
  return find_in(*parent);
}

SimResult<uint64_t> SimState::create(std::string_view path, bool is_directory) {
  const auto parent = find_parent(path);
  if (!parent) return error(parent.error());
  if (find_in(*parent)) return error(EEXIST);
  const uint64_t id = next_inode_++;
  inodes_[id].is_directory = is_directory;
  inodes_[id].mtime_ns = ++clock_ns_;
  change_names({.from = {}, .to = {parent->directory, std::string(parent->name)}, .inode = id});
  return id;
}

SimResult<void> SimState::remove(std::string_view path, bool is_directory) {
  const auto parent = find_parent(path);
  if (!parent) return error(parent.error());
  const auto found = find_in(*parent);
  if (!found) return error(found.error());
  const SimInode& inode = inodes_.at(*found);
  if (inode.is_directory != is_directory) return error(is_directory ? ENOTDIR : EISDIR);
  if (!inode.entries.empty()) return error(ENOTEMPTY);
  change_names({.from = {parent->directory, std::string(parent->name)}, .to = {}, .inode = *found});
  return {};
}

// The checks and their order follow rename(2) on Linux.
SimResult<void> SimState::rename(std::string_view from, std::string_view to) {
  const auto from_parent = find_parent(from);
  if (!from_parent) return error(from_parent.error());
  const auto to_parent = find_parent(to);
  if (!to_parent) return error(to_parent.error());
  const auto source = find_in(*from_parent);
  if (!source) return error(source.error());
  if (is_below(to, from)) return error(EINVAL);
  if (is_below(from, to)) return error(ENOTEMPTY);
  const auto target = find_in(*to_parent);
  if (target && *target == *source) return {};
  if (target) {
    const bool moves_directory = inodes_.at(*source).is_directory;
    const SimInode& replaced = inodes_.at(*target);
    if (moves_directory != replaced.is_directory) return error(moves_directory ? ENOTDIR : EISDIR);
    if (!replaced.entries.empty()) return error(ENOTEMPTY);
  }
  change_names({.from = {from_parent->directory, std::string(from_parent->name)},
                .to = {to_parent->directory, std::string(to_parent->name)},
                .inode = *source});
  return {};
}

void SimState::change_names(SimNameChange change) {
  SimInode& inode = inodes_.at(change.inode);
  if (change.from.directory != 0) {
    inodes_.at(change.from.directory).entries.erase(change.from.name);
    --inode.names;
  }
  if (change.to.directory != 0) {
    const auto [entry, is_new] = inodes_.at(change.to.directory).entries.try_emplace(change.to.name, change.inode);
    if (!is_new) {
      SimInode& replaced = inodes_.at(std::exchange(entry->second, change.inode));
      --replaced.names;
      release_content(replaced);
    }
    ++inode.names;
  }
  release_content(inode);
  pending_names_.push_back(std::move(change));
  if (inodes_.size() > garbage_limit_) collect_garbage();
}

// Applies a change to the names on the medium. Has no effect if a change that it depends on was lost.
void SimState::make_durable(const SimNameChange& change) {
  if (change.from.directory != 0) {
    auto& entries = inodes_.at(change.from.directory).durable_entries;
    const auto found = entries.find(change.from.name);
    if (found == entries.end() || found->second != change.inode) return;
    entries.erase(found);
  }
  if (change.to.directory != 0) inodes_.at(change.to.directory).durable_entries[change.to.name] = change.inode;
}

SimResult<void> SimState::sync_directory(std::string_view path) {
  const auto found = find(path);
  if (!found) return error(found.error());
  if (!inodes_.at(*found).is_directory) return error(ENOTDIR);
  // Goes backwards to find which directories, and so which changes, this one depends on.
  std::set<uint64_t> directories = {*found};
  std::vector<bool> taken(pending_names_.size());
  for (size_t i = pending_names_.size(); i-- > 0;) {
    const SimNameChange& change = pending_names_[i];
    taken[i] = directories.contains(change.from.directory) || directories.contains(change.to.directory);
    if (!taken[i]) continue;
    for (uint64_t directory : {change.from.directory, change.to.directory})
      if (directory != 0) directories.insert(directory);
  }
  std::vector<SimNameChange> left;
  for (size_t i = 0; i < pending_names_.size(); ++i) {
    if (taken[i])
      make_durable(pending_names_[i]);
    else
      left.push_back(std::move(pending_names_[i]));
  }
  pending_names_ = std::move(left);
  return {};
}

void SimState::collect_files(uint64_t directory, const std::string& prefix, std::vector<std::string>& paths) const {
  for (const auto& [name, id] : inodes_.at(directory).entries) {
    if (inodes_.at(id).is_directory)
      collect_files(id, prefix + name + "/", paths);
    else
      paths.push_back(prefix + name);
  }
}

std::vector<std::string> SimState::all_files() const {
  std::vector<std::string> paths;
  collect_files(kRootInode, "", paths);
  std::ranges::sort(paths);
  return paths;
}

void SimState::close_handle(uint64_t id) {
  SimInode& inode = inodes_.at(id);
  --inode.handles;
  release_content(inode);
}

// Frees the space of a file without a name and without handles. Its content on the medium, or on its way there,
// stays: the removal of the name may yet be lost.
void SimState::release_content(SimInode& inode) {
  if (inode.names > 0 || inode.handles > 0) return;
  used_bytes_ -= inode.content.allocated_bytes();
  inode.content = {};
}

bool SimState::fits(const SimInode& inode, uint64_t offset, uint64_t length) const {
  return inode.content.missing_bytes(offset, length) <= capacity_bytes_ - std::min(capacity_bytes_, used_bytes_);
}

void SimState::change_content(uint64_t id, SimChange change) {
  SimInode& inode = inodes_.at(id);
  used_bytes_ -= inode.content.allocated_bytes();
  apply(inode.content, change);
  used_bytes_ += inode.content.allocated_bytes();
  inode.mtime_ns = ++clock_ns_;
  inode.pending.push_back(std::move(change));
}

SimResult<void> SimState::write(uint64_t id, uint64_t offset, Bytes data) {
  if (data.empty()) return {};
  if (!fits(inodes_.at(id), offset, data.size())) return error(ENOSPC);
  change_content(id, {.kind = SimChange::Kind::kWrite,
                      .offset = offset,
                      .length = data.size(),
                      .data = std::make_shared<const Bytes>(std::move(data))});
  return {};
}

void SimState::truncate(uint64_t id, uint64_t size) {
  change_content(id, {.kind = SimChange::Kind::kTruncate, .offset = size, .length = 0, .data = nullptr});
}

SimResult<void> SimState::allocate(uint64_t id, uint64_t offset, uint64_t length) {
  if (!fits(inodes_.at(id), offset, length)) return error(ENOSPC);
  change_content(id, {.kind = SimChange::Kind::kAllocate, .offset = offset, .length = length, .data = nullptr});
  return {};
}

void SimState::punch(uint64_t id, uint64_t offset, uint64_t length) {
  change_content(id, {.kind = SimChange::Kind::kPunch, .offset = offset, .length = length, .data = nullptr});
}

void SimState::sync(uint64_t id) {
  SimInode& inode = inodes_.at(id);
  for (const SimChange& change : inode.pending) apply(inode.durable_content, change);
  inode.pending.clear();
}

void SimState::lose_unsynced(uint64_t id) {
  SimInode& inode = inodes_.at(id);
  uint64_t size = inode.content.size();
  std::erase_if(inode.pending, [](const SimChange& change) { return change.kind == SimChange::Kind::kWrite; });
  used_bytes_ -= inode.content.allocated_bytes();
  inode.content = inode.durable_content;
  for (const SimChange& change : inode.pending) apply(inode.content, change);
  inode.content.truncate(size);
  inode.pending.push_back({.kind = SimChange::Kind::kTruncate, .offset = size, .length = 0, .data = nullptr});
  used_bytes_ += inode.content.allocated_bytes();
}

void SimState::sync_everything() {
  for (auto& [id, inode] : inodes_) sync(id);
  for (const SimNameChange& change : pending_names_) make_durable(change);
  pending_names_.clear();
}

void SimState::flip(uint64_t id, uint64_t offset, std::byte xor_with) {
  SimInode& inode = inodes_.at(id);
  used_bytes_ -= inode.content.allocated_bytes();
  inode.content.flip(offset, xor_with);  // makes a block where there was a hole
  used_bytes_ += inode.content.allocated_bytes();
  if (offset < inode.durable_content.size()) inode.durable_content.flip(offset, xor_with);
  for (SimChange& change : inode.pending) {
    if (change.kind != SimChange::Kind::kWrite || offset < change.offset || offset - change.offset >= change.length)
      continue;
    Bytes data = *change.data;
    data[static_cast<size_t>(offset - change.offset)] ^= xor_with;
    change.data = std::make_shared<const Bytes>(std::move(data));
  }
}

void SimState::cut(uint64_t id, uint64_t size) {
  truncate(id, size);
  sync(id);
}

// ---- what the next start finds ----

void SimState::mark(uint64_t id, std::set<uint64_t>& reached) const {
  if (!reached.insert(id).second) return;
  const SimInode& inode = inodes_.at(id);
  for (const auto& [name, child] : inode.entries) mark(child, reached);
  for (const auto& [name, child] : inode.durable_entries) mark(child, reached);
}

// Drops inodes that no name, no name that may come back, and no handle leads to.
void SimState::collect_garbage() {
  std::set<uint64_t> reached;
  mark(kRootInode, reached);
  for (const SimNameChange& change : pending_names_) {
    mark(change.inode, reached);
    for (uint64_t directory : {change.from.directory, change.to.directory})
      if (directory != 0) mark(directory, reached);
  }
  for (const auto& [id, inode] : inodes_)
    if (inode.handles > 0) mark(id, reached);
  std::erase_if(inodes_, [&](const auto& item) { return !reached.contains(item.first); });
  garbage_limit_ = std::max<size_t>(1024, 2 * inodes_.size());
}

// After a crash: closes all handles, drops unnamed inodes, and sets the name counts from the names.
void SimState::settle() {
  for (auto& [id, inode] : inodes_) {
    inode.handles = 0;
    inode.names = 0;
  }
  inodes_.at(kRootInode).names = 1;
  for (auto& [id, inode] : inodes_)
    for (const auto& [name, child] : inode.entries) inodes_.at(child).names = 1;
  used_bytes_ = 0;
  for (auto& [id, inode] : inodes_) used_bytes_ += inode.content.allocated_bytes();
  for (auto& [id, inode] : inodes_) release_content(inode);
  collect_garbage();
}

SimState SimState::after_crash() const {
  SimState next = *this;
  next.settle();
  return next;
}

SimState SimState::after_power_loss(const SimVolume::PowerLoss& loss) const {
  SimState next = *this;
  Dice names(loss.seed, 0);
  for (const SimNameChange& change : pending_names_)
    if (names.keep(loss.keep_probability)) next.make_durable(change);
  next.pending_names_.clear();
  for (auto& [id, inode] : next.inodes_) {
    inode.entries = inode.durable_entries;
    inode.content = content_after_loss(inode, loss, Dice(loss.seed, id));
    inode.durable_content = inode.content;
    inode.pending.clear();
  }
  for (auto& [id, inode] : next.inodes_) inode.handles = 0;
  next.collect_garbage();  // first, so that unreachable inodes do not count
  next.settle();
  return next;
}

}  // namespace kvcachefs
