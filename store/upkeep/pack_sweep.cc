#include "store/upkeep/pack_sweep.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {
constexpr size_t kStatsAtOnce = 256;
constexpr size_t kPunchesAtOnce = 512;
constexpr uint64_t kRangesAtOnce = 512 * 1024;  // 8 MiB of RAM; more packs take another scan
}  // namespace

PackSweep::PackSweep(Extents& extents, const Index& index, Epochs epochs, InHand in_hand, unsigned threads)
    : extents_(extents), index_(index), epochs_(epochs), in_hand_(std::move(in_hand)), runner_("kvc-sweep", threads) {}

std::string PackSweep::path_of(ExtentId id) const {
  return extents_.path(id, PlaceKind::kPacked);
}

Result<bool> PackSweep::step() {
  Status status;
  if (!listed_)
    status = list_packs();
  else if (!unmeasured_.empty())
    status = measure_some();
  else if (!gaps_.empty())
    status = punch_some();
  else if (!surplus_.empty())
    status = find_gaps();
  else
    return false;
  if (!status) return std::unexpected(std::move(status).error());
  return true;
}

Status PackSweep::list_packs() {
  unmeasured_.clear();
  KVC_TRY(index_.scan_extents([&](ExtentId id, const ExtentUsage& usage) {
    if (usage.kind == PlaceKind::kPacked && id.epoch > epochs_.after && id.epoch <= epochs_.through && id.epoch < extents_.identity().epoch)
      unmeasured_.push_back({id, usage.bodies, usage.live_bytes});
    return true;
  }));
  in_hand_bytes_.clear();
  in_hand_([this](ExtentId id, ByteRange range) { in_hand_bytes_[id] += range.end - range.begin; });
  listed_ = true;
  return {};
}

Status PackSweep::measure_some() {
  const size_t count = std::min(kStatsAtOnce, unmeasured_.size()), from = unmeasured_.size() - count;
  std::vector<Result<FileInfo>> infos(count, FileInfo{});
  runner_.run(count, [&](size_t at) { infos[at] = extents_.volume().info(path_of(unmeasured_[from + at].id)); });
  for (size_t at = 0; at < count; ++at) {
    const auto& info = infos[at];
    if (!info && info.error().code == Code::kNotFound) continue;
    if (!info) return std::unexpected(info.error());
    Pack pack = unmeasured_[from + at];
    pack.file_bytes = info->size_bytes;
    pack.allocated_bytes = info->allocated_bytes;
    const uint64_t surplus = pack_surplus_bytes(pack.allocated_bytes, pack.live_bytes, pack.bodies);
    if (surplus == 0) continue;
    const auto in_hand = in_hand_bytes_.find(pack.id);
    pack.surplus_bytes = surplus - (in_hand == in_hand_bytes_.end() ? 0 : std::min(surplus, in_hand->second));
    surplus_.push_back(pack);
    surplus_bytes_ += pack.surplus_bytes;
  }
  unmeasured_.resize(from);
  if (unmeasured_.empty()) in_hand_bytes_.clear();
  return {};
}

// Handles as many packs as one scan can take. Only ranges that are live in the committed state, or in hand at this moment, can be used
// later.
Status PackSweep::find_gaps() {
  std::unordered_map<ExtentId, std::vector<ByteRange>> taken;
  std::vector<Pack> packs;
  uint64_t ranges = 0;
  while (!surplus_.empty() && (packs.empty() || ranges + surplus_.back().bodies <= kRangesAtOnce)) {
    ranges += surplus_.back().bodies;
    taken[surplus_.back().id].reserve(surplus_.back().bodies);
    packs.push_back(surplus_.back());
    surplus_.pop_back();
  }
  auto take = [&](ExtentId id, ByteRange range) {
    if (auto pack = taken.find(id); pack != taken.end()) pack->second.push_back(range);
  };
  std::unordered_map<ExtentId, uint64_t> live_bytes;
  KVC_TRY(index_.scan_objects([&](ObjectRecord&& row) {
    const Place& place = row.body.place;
    if (place.kind != PlaceKind::kPacked || !taken.contains(place.extent)) return true;
    const uint64_t end = place.offset + align_up(place.length, kBlockBytes);
    live_bytes[place.extent] += end - place.offset;
    take(place.extent, {place.offset, end});
    return true;
  }));
  in_hand_(take);
  for (const Pack& pack : packs) {
    KVC_ASSIGN(const auto usage, index_.find_extent(pack.id));
    if (!usage) continue;  // all of it died: the pack goes as a whole
    if (live_bytes[pack.id] < usage->live_bytes)
      return fail(Code::kCorrupt, fmt::format("index: {} has {} live bytes, its objects {}", path_of(pack.id),
                                              usage->live_bytes, live_bytes[pack.id]));
    gaps_.push_back({pack, gaps_in_pack(std::move(taken[pack.id]), align_up(pack.file_bytes, kBlockBytes))});
  }
  return {};
}

Status PackSweep::punch_some() {
  Gaps& gaps = gaps_.back();  // of one pack, completely if it has few
  auto file = extents_.open_for_punch(gaps.pack.id);
  if (!file && file.error().code == Code::kNotFound) {
    surplus_bytes_ -= gaps.pack.surplus_bytes;
    gaps_.pop_back();
    return {};
  }
  if (!file) return std::unexpected(std::move(file).error());
  for (size_t i = 0; i < kPunchesAtOnce && !gaps.ranges.empty(); ++i) {
    const ByteRange range = gaps.ranges.back();
    KVC_TRY((*file)->punch(range.begin, range.end - range.begin));
    kill_point("leftover-punched");
    gaps.ranges.pop_back();
    ++ranges_;
  }
  if (!gaps.ranges.empty()) return {};
  if (auto info = (*file)->info()) bytes_ += gaps.pack.allocated_bytes - std::min(gaps.pack.allocated_bytes, info->allocated_bytes);
  surplus_bytes_ -= gaps.pack.surplus_bytes;
  ++packs_swept_;
  gaps_.pop_back();
  return {};
}

}  // namespace kvcachefs
