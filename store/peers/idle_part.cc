#include "store/peers/idle_part.h"

#include <algorithm>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "store/journal/removed_nodes.h"
#include "store/peers/discovery.h"

namespace kvcachefs {

namespace {

std::string part_of(std::string_view node) { return fmt::format("nodes/{}", node); }
std::string peers_path(std::string_view node) { return fmt::format("nodes/{}/index-peers", node); }

uint64_t reserve_bytes_of(Volume& volume, const std::string& node) {
  const auto info = volume.info(reserve_path(node));
  return info ? std::min(info->size_bytes, info->allocated_bytes) : 0;
}

Result<uint64_t> remove_reserve(Volume& volume, const std::string& node) {
  const uint64_t bytes = reserve_bytes_of(volume, node);
  Status removed = volume.remove_file(reserve_path(node));
  if (!removed && removed.error().code != Code::kNotFound) return std::unexpected(std::move(removed).error());
  return bytes;
}

// Writes into LOCK again after the work: nodes that measure the part (ClaimPeers) see by that write that it became smaller.
template <class Work>
Result<uint64_t> with_lock(Volume& volume, const std::string& node, std::string_view holder, Work work) {
  KVC_ASSIGN(const std::unique_ptr<VolumeLock> lock, volume.lock(part_of(node) + "/LOCK"));
  static_cast<void>(lock->describe(holder));  // fails where the file system is full
  KVC_ASSIGN(const uint64_t bytes, work());
  KVC_TRY(lock->describe(holder));
  return bytes;
}

}  // namespace

std::string reserve_path(std::string_view node) { return part_of(node) + "/RESERVE"; }

bool others_keep_reserve(Volume& volume, const FileIdentity& own, uint64_t bytes) {
  const auto others = list_other_nodes(volume, own);
  return others && std::ranges::any_of(*others, [&](const std::string& node) {
    const uint64_t kept = reserve_bytes_of(volume, node);
    return kept > 0 && kept >= bytes;
  });
}

bool holds_for_nothing(Volume& volume, const std::string& node) {
  return volume.info(reserve_path(node)).has_value() || (!volume.features().network && volume.info(peers_path(node)).has_value());
}

Result<uint64_t> give_back_idle(Volume& volume, const std::string& node, std::string_view holder) {
  return with_lock(volume, node, holder, [&]() -> Result<uint64_t> {
    uint64_t bytes = 0;
    if (!volume.features().network) {  // on a network volume the indexes are on that node's machine
      KVC_ASSIGN(const Cleared cleared, remove_tree(volume, peers_path(node)));
      bytes += cleared.bytes;
    }
    KVC_ASSIGN(const uint64_t reserve_bytes, remove_reserve(volume, node));
    return bytes + reserve_bytes;
  });
}

bool give_back_reserves_of_others(Volume& volume, const FileIdentity& own, uint64_t bytes, std::string_view holder) {
  const auto others = list_other_nodes(volume, own);
  uint64_t came_back = 0;
  for (const std::string& node : others.value_or(std::set<std::string>())) {
    if (came_back >= bytes) break;
    if (reserve_bytes_of(volume, node) == 0) continue;
    came_back += with_lock(volume, node, holder, [&] { return remove_reserve(volume, node); }).value_or(0);
  }
  return came_back > 0;
}

}  // namespace kvcachefs
