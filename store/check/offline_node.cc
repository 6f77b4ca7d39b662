#include "store/check/offline_node.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "store/base/clock.h"
#include "store/base/node_name.h"
#include "store/index/index.h"
#include "store/index/index_directory.h"
#include "store/journal/make_volume.h"
#include "store/peers/slot_reader.h"

namespace kvcachefs {

namespace {

Result<std::vector<std::string>> list_nodes(Volume& volume) {
  std::vector<std::string> nodes;
  auto entries = volume.list("nodes");
  if (!entries && entries.error().code != Code::kNotFound) return std::unexpected(std::move(entries).error());
  if (entries)
    for (const DirectoryEntry& entry : *entries)
      if (entry.is_directory) nodes.push_back(entry.name);
  if (nodes.empty())
    return fail(Code::kNotFound,
                fmt::format("volume {} holds no node: nothing was ever mounted from it", volume.root()));
  return nodes;
}

Result<std::string> choose_node(const Volume& volume, const std::vector<std::string>& nodes, const std::string& wanted) {
  std::string names;
  for (const std::string& node : nodes) {
    if (node == (wanted.empty() ? node_name_of_host() : wanted)) return node;
    names += (names.empty() ? "" : ", ") + node;
  }
  if (!wanted.empty())
    return fail(Code::kNotFound, fmt::format("volume {} has no node '{}', only {}", volume.root(), wanted, names));
  if (nodes.size() == 1) return nodes.front();
  return fail(Code::kInvalid,
              fmt::format("volume {} has several nodes: name one with --node ({})", volume.root(), names));
}

}  // namespace

Result<std::vector<std::string>> nodes_of_volume(const std::string& volume) {
  std::error_code error;
  const std::string root = std::filesystem::canonical(volume, error).string();
  if (error) return fail_errno(error.value(), "volume " + volume);
  KVC_ASSIGN(const auto opened, open_posix_volume(root, {}));
  return list_nodes(*opened);
}

Result<OfflineNode> open_offline_node(const OfflineRequest& request, bool goes_without) {
  OfflineNode node;
  std::error_code error;
  const std::string root = std::filesystem::canonical(request.volume, error).string();
  if (error) return fail_errno(error.value(), "volume " + request.volume);
  KVC_ASSIGN(node.volume, open_posix_volume(root, {}));
  auto header = read_volume_file(*node.volume);
  if (!header && goes_without && lacks_volume_file(header.error()) && list_nodes(*node.volume)) {
    node.lacks_volume_file = header.error().code == Code::kNotFound ? fmt::format("{} is missing", kVolumeFileName) : fmt::format("{} is damaged", kVolumeFileName);
    header = header_of_other_files(*node.volume, Stamp{static_cast<uint64_t>(system_clock().realtime_ns())});
  }
  if (!header && header.error().code == Code::kNotFound && !list_nodes(*node.volume))
    return fail(Code::kNotFound, fmt::format("{} is not a kvcachefs volume: it has no file {}", root, kVolumeFileName));
  if (!header) return std::unexpected(std::move(header).error());
  node.header = *header;
  node.identity.volume_uuid = header->uuid;
  KVC_ASSIGN(const auto nodes, list_nodes(*node.volume));
  KVC_ASSIGN(node.identity.node, choose_node(*node.volume, nodes, request.node));
  node.has_others = nodes.size() > 1;
  auto lock = node.volume->lock(fmt::format("nodes/{}/LOCK", node.identity.node));
  if (!lock) {
    Error why = std::move(lock).error();
    if (why.code != Code::kBusy) return std::unexpected(std::move(why));
    return std::unexpected(std::move(why).at(fmt::format("volume {} is in use, unmount it first", root)));
  }
  node.lock = std::move(*lock);
  KVC_TRY(node.lock->describe(fmt::format("pid={} host={} command={}", getpid(), node_name_of_host(), request.purpose)));
  KVC_ASSIGN(auto epochs, list_epochs(*node.volume, node.identity.node));
  if (!epochs.empty()) node.identity.epoch = epochs.back();
  node.index_directory = request.index_directory.empty()
                             ? default_index_directory(node.volume->root(), node.volume->features().network, node.header.uuid, node.identity.node)
                             : std::filesystem::absolute(request.index_directory).string();
  node.index_is_named = !request.index_directory.empty();
  while (node.index_directory.size() > 1 && node.index_directory.ends_with('/')) node.index_directory.pop_back();
  if (node.index_directory.starts_with(root + "/nodes/")) KVC_TRY(check_plain(*node.volume, node.index_directory.substr(root.size() + 1)));
  return node;
}

Status check_is_not_in_use(const OfflineNode& node) { return check_lives_nowhere_else(*node.volume, node.identity, system_clock()); }

Status remove_index_of(const OfflineNode& node) { return remove_index(node.index_directory); }

}  // namespace kvcachefs
