#include "store/journal/removed_nodes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/journal/journal_file.h"

namespace kvcachefs {
namespace {

constexpr const char* kRemoved = "removed";

std::string directory_of(std::string_view node) { return fmt::format("{}/{}", kRemoved, node); }

// Whether the directory has a directory of that name.
Result<bool> has_directory(Volume& volume, const std::string& directory, std::string_view name) {
  KVC_ASSIGN(const auto entries, volume.list(directory));
  return std::ranges::any_of(entries, [name](const DirectoryEntry& entry) { return entry.is_directory && entry.name == name; });
}

// Ascending.
Result<std::vector<uint32_t>> removed_epochs(Volume& volume, std::string_view node) {
  std::vector<uint32_t> epochs;
  KVC_ASSIGN(const bool any, has_directory(volume, "", kRemoved));
  if (!any) return epochs;
  KVC_ASSIGN(const bool this_one, has_directory(volume, kRemoved, node));
  if (!this_one) return epochs;
  KVC_ASSIGN(const auto entries, volume.list(directory_of(node)));
  for (const DirectoryEntry& entry : entries) {
    const auto epoch = entry.is_directory ? parse_seq(entry.name) : std::nullopt;
    if (epoch && *epoch <= kMaxEpoch) epochs.push_back(static_cast<uint32_t>(*epoch));
  }
  std::ranges::sort(epochs);
  return epochs;
}

class TreeWalk {
 public:
  TreeWalk(Volume& volume, bool remove) : volume_(volume), remove_(remove) {}
  const Cleared& cleared() const { return cleared_; }

  // Visits the content, not the directory itself. Several processes may do so at once.
  Status walk(const std::string& directory) {
    auto entries = volume_.list(directory);
    if (!entries) return entries.error().code == Code::kNotFound ? Status() : std::unexpected(std::move(entries).error());
    for (const DirectoryEntry& entry : *entries) {
      const std::string path = directory + "/" + entry.name;
      KVC_TRY(entry.is_directory ? take_directory(path) : take_file(path));
    }
    return {};
  }

  Status take_directory(const std::string& path) {
    KVC_TRY(walk(path));
    if (!remove_) return {};
    Status removed = volume_.remove_directory(path);
    if (removed || removed.error().code == Code::kNotFound) return {};
    return removed.error().code == Code::kNotEmpty && cleared_.left > 0 ? Status() : removed;
  }

 private:
  Status take_file(const std::string& path) {
    const auto info = volume_.info(path);
    if (!info && info.error().code == Code::kNotFound) return {};
    if (remove_) {
      Status removed = volume_.remove_file(path);
      if (!removed && removed.error().code == Code::kNotFound) return {};
      if (!removed && (removed.error().code == Code::kBusy || path.contains("/.nfs"))) {
        ++cleared_.left;
        return {};
      }
      KVC_TRY(std::move(removed));
      kill_point("node-half-removed");
    }
    if (info) cleared_.bytes += info->allocated_bytes;
    ++cleared_.files;
    return {};
  }

  Volume& volume_;
  const bool remove_;
  Cleared cleared_;
};

}  // namespace

Result<uint32_t> last_removed_epoch(Volume& volume, std::string_view node) {
  KVC_ASSIGN(const auto epochs, removed_epochs(volume, node));
  return epochs.empty() ? 0 : epochs.back();
}

Status set_node_aside(Volume& volume, const FileIdentity& identity) {
  const std::string above = directory_of(identity.node);
  KVC_TRY(volume.make_directories(above));
  KVC_TRY(volume.sync_directory(""));
  KVC_TRY(volume.sync_directory(kRemoved));
  KVC_TRY(volume.rename("nodes/" + identity.node, fmt::format("{}/{}", above, identity.epoch)));
  kill_point("node-set-aside");
  KVC_TRY(volume.sync_directory(above));  // new name first: a power loss then leaves both names or the new one
  return volume.sync_directory("nodes");
}

Result<Cleared> clear_set_aside(Volume& volume, std::string_view node, bool remove) {
  KVC_ASSIGN(const auto epochs, removed_epochs(volume, node));
  TreeWalk walk(volume, remove);
  for (const uint32_t epoch : epochs) {
    const std::string directory = fmt::format("{}/{}", directory_of(node), epoch);
    const uint64_t before = walk.cleared().left;
    KVC_TRY(walk.walk(directory));
    if (!remove || epoch == epochs.back() || walk.cleared().left != before) continue;
    Status removed = volume.remove_directory(directory);
    if (!removed && removed.error().code != Code::kNotFound) return std::unexpected(std::move(removed).error());
  }
  if (remove && walk.cleared().files > 0) KVC_TRY(volume.sync_directory(directory_of(node)));
  return walk.cleared();
}

Result<Cleared> measure_tree(Volume& volume, const std::string& directory) {
  TreeWalk walk(volume, /*remove=*/false);
  KVC_TRY(walk.walk(directory));
  return walk.cleared();
}

Result<Cleared> remove_tree(Volume& volume, const std::string& directory) {
  TreeWalk walk(volume, /*remove=*/true);
  KVC_TRY(walk.take_directory(directory));
  return walk.cleared();
}

}  // namespace kvcachefs
