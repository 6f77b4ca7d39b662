#include "store/check/dead_ranges.h"

#include <algorithm>

#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/volume/posix_tree.h"

namespace kvcachefs {

Result<std::vector<PackWithDeadRanges>> find_dead_ranges(const OfflineNode& node, std::span<const BodyRef> bodies) {
  std::vector<PackWithDeadRanges> found;
  for (size_t first = 0, next = 0; first < bodies.size(); first = next) {
    const Place& place = bodies[first].place;
    std::vector<ByteRange> taken;
    uint64_t live_bytes = 0;
    for (; next < bodies.size() && bodies[next].place.extent == place.extent; ++next) {
      const uint64_t begin = bodies[next].place.offset, bytes = align_up(bodies[next].place.length, kBlockBytes);
      taken.push_back({begin, begin + bytes});
      live_bytes += bytes;
    }
    if (place.kind != PlaceKind::kPacked) continue;
    auto info = node.volume->info(extent_path(node.identity.node, place.extent, PlaceKind::kPacked));
    if (info ? info->is_directory : info.error().code == Code::kNotFound || is_no_file(info.error())) continue;  // reported with its bodies
    if (!info) return std::unexpected(std::move(info).error());
    const uint64_t surplus_bytes = pack_surplus_bytes(info->allocated_bytes, live_bytes, taken.size());
    if (surplus_bytes == 0) continue;
    found.push_back({place.extent, info->allocated_bytes, surplus_bytes,
                     gaps_in_pack(std::move(taken), align_up(info->size_bytes, kBlockBytes))});
  }
  return found;
}

Result<uint64_t> give_back(const OfflineNode& node, const PackWithDeadRanges& pack) {
  const std::string path = extent_path(node.identity.node, pack.extent, PlaceKind::kPacked);
  KVC_ASSIGN(auto file, node.volume->open(path, {.writable = true}));
  for (const ByteRange& range : pack.ranges) KVC_TRY(file->punch(range.begin, range.end - range.begin));
  KVC_ASSIGN(const FileInfo info, file->info());
  return pack.allocated_bytes - std::min(pack.allocated_bytes, info.allocated_bytes);
}

}  // namespace kvcachefs
