#include "tools/load/target.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "store/base/units.h"
#include "tools/load/cache_control.h"
#include "tools/load/mount_status.h"

namespace kvcachefs {
namespace fs = std::filesystem;
namespace {

std::string option_of(const std::vector<std::string>& directories) {
  return fmt::format("{} {}", directories.size() == 1 ? "--dir" : "--nodes", fmt::join(directories, ","));
}

std::string canonical(const std::string& directory) {
  std::error_code ignored;
  return fs::weakly_canonical(directory, ignored).string();
}

Status check_directory(const std::string& directory, const std::string& option) {
  const std::string place = option.ends_with(" " + directory) ? option : option + ": " + directory;
  struct stat info;
  if (::stat(directory.c_str(), &info) != 0) return fail_errno(errno, place);
  if (!S_ISDIR(info.st_mode)) return fail(Code::kNotDirectory, place + ": not a directory");
  return {};
}

// Returns the volumes of the nodes that are mounts. A mount stands for one node: two directories of one mount would find each other's
// chunks without another node.
Result<std::vector<std::string>> check_nodes(const std::vector<std::string>& directories, const std::string& option) {
  std::set<std::string> seen;
  std::map<std::string, std::string> by_mount;  // root of the mount -> the directory in it
  std::vector<std::string> uuids;
  std::string plain;
  for (const std::string& directory : directories) {
    if (!seen.insert(canonical(directory)).second) {
      return fail(Code::kInvalid, fmt::format("{}: {} is named twice; name a directory for each node", option, directory));
    }
    const auto mount = read_mount_status(directory);
    if (!mount) {
      plain = directory;
      continue;
    }
    uuids.push_back(mount->volume_uuid);
    const auto [at, added] = by_mount.emplace(mount->root, directory);
    if (added) continue;
    return fail(Code::kInvalid,
                fmt::format("{}: {} and {} are on one mount, {}; mount the volume once for each node (kvcachefs mount "
                            "VOLUME MOUNTPOINT -o node=NAME)",
                            option, at->second, directory, mount->root));
  }
  if (!plain.empty() && !by_mount.empty()) {
    return fail(Code::kInvalid, fmt::format("{}: {} is on a kvcachefs, {} is on none; mount that, too, or name plain "
                                            "directories only",
                                            option, by_mount.begin()->second, plain));
  }
  return uuids;
}

// Removes everything below `path`. Files removed by other nodes can disappear at any moment during the walk, and remove_all() may then stop with an
// error; each time it does, some files are gone, so it is repeated.
std::error_code remove_whatever_goes(const fs::path& path) {
  constexpr int kTries = 100;
  std::error_code error;
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(path, error);
    if (error != std::errc::no_such_file_or_directory) break;
  }
  return error;
}

Status remove_tree(const std::string& path) {
  const std::error_code error = remove_whatever_goes(path);
  if (error) return fail_errno(error.value(), path + ": remove with all that is in it");
  return {};
}

// Calls `remove` with one path after another; before each call, all nodes have seen the changes of the others. Returns the
// first error, after all calls.
Status remove_on_nodes(const std::vector<std::string>& paths, Status (*remove)(const std::string&)) {
  Status outcome;
  auto keep = [&](Status status) {
    if (!status && outcome) outcome = std::move(status);
  };
  for (const std::string& path : paths) {
    if (const auto seen = exchange_changes(paths); !seen) keep(std::unexpected(seen.error()));
    keep(remove(path));
  }
  return outcome;
}

Status remove_entries(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  for (size_t i = 0; i < entries.size() && !error; ++i) error = remove_whatever_goes(entries[i]);
  if (error) return fail_errno(error.value(), directory + ": remove what is in it");
  return {};
}

}  // namespace

Result<std::vector<std::vector<std::string>>> parse_nodes(const std::vector<std::string>& lists) {
  std::vector<std::vector<std::string>> nodes;
  for (const std::string& list : lists) {
    std::vector<std::string> directories;
    for (size_t from = 0; from <= list.size();) {
      const size_t comma = std::min(list.find(',', from), list.size());
      directories.push_back(list.substr(from, comma - from));
      from = comma + 1;
    }
    if (std::ranges::find(directories, "") != directories.end()) {
      return fail(Code::kInvalid, fmt::format("--nodes '{}': a name is missing; it takes DIR,DIR,...", list));
    }
    if (directories.size() == 1) {
      return fail(Code::kInvalid, fmt::format("--nodes {}: one directory only; name one for each node, two or more, "
                                              "separated by commas, or use --dir {}",
                                              list, list));
    }
    if (!nodes.empty() && directories.size() != nodes.front().size()) {
      return fail(Code::kInvalid, fmt::format("--nodes {}: {} directories after {} in the first --nodes; name as many in "
                                              "each, so that all serve the same engines",
                                              list, directories.size(), nodes.front().size()));
    }
    nodes.push_back(std::move(directories));
  }
  return nodes;
}

std::vector<std::string> column_names(const TargetNames& names) {
  std::vector<std::string> columns = names.dirs;
  for (const auto& directories : names.nodes) columns.push_back(fmt::format("{}", fmt::join(directories, ",")));
  return columns;
}

Target::Target(std::vector<std::string> directories, size_t index)
    : name_(fmt::format("{}", fmt::join(directories, ","))), directories_(std::move(directories)), index_(index) {}

Result<Target> Target::open(const std::vector<std::string>& directories, size_t index, const std::string& purpose) {
  const std::string option = option_of(directories);
  for (const std::string& directory : directories) KVC_TRY(check_directory(directory, option));
  Target target(directories, index);
  if (directories.size() > 1) {
    KVC_ASSIGN(target.volume_uuids_, check_nodes(directories, option));
  }
  // The process id is not enough: a killed run leaves its directory behind, and in containers process ids repeat.
  std::string work = fs::path(directories.front()) / fmt::format("kvcachefs-{}-{}-{}.XXXXXX", purpose, ::getpid(), index);
  if (::mkdtemp(work.data()) == nullptr || ::chmod(work.c_str(), 0755) != 0) {
    return fail_errno(errno, fmt::format("{}: cannot create {} there", option, work));
  }
  target.works_.push_back(work);
  for (const std::string& directory : std::span(directories).subspan(1)) {
    const std::string same = fs::path(directory) / fs::path(work).filename();
    if (::mkdir(same.c_str(), 0755) != 0 && errno != EEXIST) {
      return fail_errno(errno, fmt::format("{}: cannot create {} there", option, same));
    }
    target.works_.push_back(same);
  }
  return target;
}

Target::Target(Target&& other) noexcept
    : name_(std::move(other.name_)),
      directories_(std::move(other.directories_)),
      works_(std::exchange(other.works_, {})),
      volume_uuids_(std::move(other.volume_uuids_)),
      index_(other.index_) {}

Target::~Target() { [[maybe_unused]] const Status ignored = remove_on_nodes(works_, remove_tree); }

Status Target::blamed(Status status) const {
  if (status || status.error().code == Code::kCanceled) return status;
  for (const std::string& work : works_) {
    if (status.error().message.find(work) != std::string::npos) return status;
  }
  return std::unexpected(std::move(status).error().at(name_));
}

std::optional<std::string> Target::shared_volume_note() const {
  if (volume_uuids_.empty() || std::ranges::find(volume_uuids_, "") != volume_uuids_.end()) return std::nullopt;
  const size_t volumes = std::set(volume_uuids_.begin(), volume_uuids_.end()).size();
  const std::string found = volumes == 1                      ? "mounts of one volume"
                            : volumes == volume_uuids_.size() ? "mounts of a volume each"
                                                              : fmt::format("mounts of {} volumes", volumes);
  return fmt::format("{}: {}", name_, found);
}

bool Target::evicts() const {
  return std::ranges::all_of(directories_, [](const std::string& directory) {
    const auto mount = read_mount_status(directory);
    return mount && mount->evicts;
  });
}

Result<std::vector<std::string>> Target::make_dirs(const std::string& name) const {
  std::vector<std::string> paths;
  for (const std::string& work : works_) {
    const std::string path = work + "/" + name;
    // A node may already see a directory that another node made.
    if (::mkdir(path.c_str(), 0755) != 0 && (errno != EEXIST || paths.empty())) {
      return fail_errno(errno, path + ": mkdir");
    }
    paths.push_back(path + "/");
  }
  return paths;
}

Status Target::remove_dirs(const std::vector<std::string>& paths) const { return remove_on_nodes(paths, remove_tree); }

Result<std::vector<Target>> open_targets(const TargetNames& names, const std::string& purpose) {
  std::vector<std::vector<std::string>> columns;
  for (const std::string& dir : names.dirs) columns.push_back({dir});
  columns.insert(columns.end(), names.nodes.begin(), names.nodes.end());
  if (columns.empty()) return fail(Code::kInvalid, "no --dir given; name one directory or more");
  std::vector<Target> targets;
  std::set<std::vector<std::string>> seen;
  for (const auto& directories : columns) {
    std::vector<std::string> known;
    for (const std::string& directory : directories) known.push_back(canonical(directory));
    if (!seen.insert(known).second) return fail(Code::kInvalid, option_of(directories) + ": named twice");
    KVC_ASSIGN(Target target, Target::open(directories, targets.size(), purpose));
    targets.push_back(std::move(target));
  }
  return targets;
}

Status remove_contents(const std::vector<std::string>& directories) {
  return remove_on_nodes(directories, remove_entries);
}

Status check_space(const std::string& directory, uint64_t bytes, const std::string& advice) {
  struct statvfs info;
  if (::statvfs(directory.c_str(), &info) != 0) return fail_errno(errno, directory + ": statvfs");
  const uint64_t available = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  // Directories and block maps also need a little space.
  const uint64_t needed = bytes + bytes / 32;
  if (available >= needed) return {};
  return fail(Code::kNoSpace, fmt::format("{}: needs {} of space, {} are free; {}", directory, format_size(needed),
                                          format_size(available), advice));
}

Status check_space(std::span<const Target> targets, uint64_t bytes, const std::string& advice) {
  std::map<dev_t, uint64_t> needed;
  std::vector<std::pair<std::string, dev_t>> places;
  for (const Target& target : targets) {
    for (const std::string& directory : target.directories()) {
      struct stat info;
      if (::stat(directory.c_str(), &info) != 0) return fail_errno(errno, directory + ": stat");
      places.emplace_back(directory, info.st_dev);
      needed[info.st_dev] += bytes;
    }
  }
  for (const auto& [directory, device] : places) KVC_TRY(check_space(directory, needed[device], advice));
  return {};
}

}  // namespace kvcachefs
