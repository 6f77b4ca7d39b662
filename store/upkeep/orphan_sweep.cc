#include "store/upkeep/orphan_sweep.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {

// Parses a file name of an extents directory; nullopt: not an extent.
std::optional<std::pair<uint64_t, PlaceKind>> parse_extent_name(const std::string& name) {
  char* end = nullptr;
  const uint64_t seq = std::strtoull(name.c_str(), &end, 10);
  if (end == name.c_str()) return std::nullopt;
  const std::string_view suffix(end);
  if (suffix == ".pack") return std::pair(seq, PlaceKind::kPacked);
  if (suffix == ".solo") return std::pair(seq, PlaceKind::kSolo);
  if (suffix == ".raw") return std::pair(seq, PlaceKind::kRaw);
  return std::nullopt;
}

}  // namespace

// --- extents ---

// Adds the extents of these epochs, all before this one, that no record names. Returns false if some could not be listed.
bool OrphanSweep::list_nameless(uint32_t after, uint32_t through, std::unordered_map<ExtentId, PlaceKind>& nameless) {
  bool all = true;
  auto list = [&](const std::string& path) {
    auto entries = parts_.volume.list(path);
    if (entries) return std::move(*entries);
    if (entries.error().code != Code::kNotFound) {
      log::warn("extents that an earlier life left: {}", entries.error().message);
      all = false;
    }
    return std::vector<DirectoryEntry>();
  };
  auto epochs = list_epochs(parts_.volume, parts_.identity.node);
  if (!epochs) {
    log::warn("extents that an earlier life left: {}", epochs.error().message);
    return false;
  }
  for (const uint32_t epoch : *epochs) {
    if (epoch <= after || epoch > through || epoch >= parts_.identity.epoch) continue;
    const std::string root = epoch_directory(parts_.identity.node, epoch) + "/extents";
    for (const DirectoryEntry& directory : list(root)) {
      for (const DirectoryEntry& file : list(root + "/" + directory.name)) {
        const auto name = parse_extent_name(file.name);
        if (!name) continue;
        const ExtentId extent{epoch, name->first};
        auto usage = parts_.index.find_extent(extent);
        all &= usage.has_value();
        if (usage && !*usage) nameless.emplace(extent, name->second);
      }
    }
  }
  return all;
}

// Adds those of the epochs that are still to be searched.
bool OrphanSweep::list_due(std::unordered_map<ExtentId, PlaceKind>& nameless) {
  return list_nameless(std::max(parts_.orphans.swept_epoch(), parts_.kept_epoch), UINT32_MAX, nameless);
}

uint64_t OrphanSweep::allocated_bytes(ExtentId extent, PlaceKind kind) const {
  auto info = parts_.extents.info(extent, kind);
  return info ? info->allocated_bytes : 0;
}

// The bytes that the extents take, minus those that DeadSpace counts.
uint64_t OrphanSweep::unknown_bytes(const std::unordered_map<ExtentId, PlaceKind>& extents) const {
  std::unordered_map<ExtentId, uint64_t> known;
  parts_.dead.for_each([&](const FreedPlace& freed) {
    if (extents.contains(freed.place.extent)) known[freed.place.extent] += align_up(freed.place.length, kBlockBytes);
  });
  uint64_t bytes = 0;
  for (const auto& [extent, kind] : extents) {
    const uint64_t allocated = allocated_bytes(extent, kind);
    const auto dead = known.find(extent);
    bytes += allocated - (dead == known.end() ? 0 : std::min(allocated, dead->second));
  }
  return bytes;
}

// The bytes that a sweep of packs would give back; 0 if unknown.
uint64_t OrphanSweep::measure(PackSweep& packs) {
  Status measured;
  while (measured && !packs.measured())
    if (auto step = packs.step(); !step) measured = std::unexpected(std::move(step).error());
  if (!measured) log::warn("dead ranges that an earlier life left: {}", measured.error().message);
  return packs.surplus_bytes();
}

// Leftover bytes in the extents and packs of kept epochs: they stay, and count.
uint64_t OrphanSweep::kept_bytes() {
  std::unordered_map<ExtentId, PlaceKind> nameless;
  static_cast<void>(list_nameless(0, parts_.kept_epoch, nameless));
  std::erase_if(nameless, [this](const auto& extent) {
    return std::ranges::any_of(parts_.orphans.extents(), [&](const Leftovers::Extent& left) { return left.id == extent.first && left.kind != PlaceKind::kPacked; });
  });
  const uint64_t extent_bytes = unknown_bytes(nameless);
  return extent_bytes + (parts_.volume.features().punch_hole ? measure(*make_pack_sweep({0, parts_.kept_epoch})) : 0);
}

void OrphanSweep::count(bool unclean) {
  if (unclean) parts_.orphans.doubt_epochs();
  if (parts_.kept_epoch > 0) {
    const uint64_t bytes = kept_bytes();
    parts_.orphans.kept(bytes);
    if (bytes > 0)
      log::warn("{} that no record names are kept, for lost records may have named them: `kvcachefs fsck --repair --remove-orphans` removes them, when not mounted",
                format_size(bytes));
  }
  epochs_due_ = parts_.orphans.unlisted();
  const bool packs = parts_.orphans.packs_unswept() && parts_.volume.features().punch_hole;  // otherwise DeadSpace knows them
  if (!packs && !epochs_due_ && !parts_.orphans.extents_due()) return;
  uint64_t pack_bytes = 0;
  std::unordered_map<ExtentId, PlaceKind> nameless;
  if (epochs_due_ && list_due(nameless)) nameless_at_start_ = nameless;
  for (const Leftovers::Extent& extent : parts_.orphans.extents())
    if (!is_kept(extent.id) || extent.kind != PlaceKind::kPacked) nameless.emplace(extent.id, extent.kind);
  const uint64_t extent_bytes = unknown_bytes(nameless);
  if (packs) {
    pack_sweep_ = make_pack_sweep();
    pack_bytes = measure(*pack_sweep_);
  }
  parts_.orphans.measured(extent_bytes, pack_bytes);
}

void OrphanSweep::cut_raw_files() {
  if (parts_.index.totals().raw_bodies == 0) return;
  std::vector<std::pair<ExtentId, ObjectId>> raw;
  Status status = parts_.index.scan_extents([&](ExtentId extent, const ExtentUsage& usage) {
    if (usage.kind == PlaceKind::kRaw && !is_kept(extent)) raw.emplace_back(extent, usage.object);  // else a lost record may have named more of it
    return true;
  });
  for (const auto& [extent, object] : raw) {
    if (!status) break;
    status = cut_raw_file(extent, object);
  }
  if (!status) log::warn("raw files that an earlier life made longer: {}", status.error().message);
}

Status OrphanSweep::cut_raw_file(ExtentId extent, ObjectId object) {
  KVC_ASSIGN(const auto record, parts_.index.find_object_summary(object));
  if (!record || record->body.place.extent != extent) return {};
  const uint64_t size_bytes = record->body.size_bytes;
  const auto info = parts_.extents.info(extent, PlaceKind::kRaw);
  if (!info || info->size_bytes <= size_bytes) return {};  // a missing file is reported when it is read
  KVC_ASSIGN(const FilePtr file, parts_.extents.open(extent, PlaceKind::kRaw));
  KVC_TRY(file->truncate(size_bytes));
  parts_.extents.note_unsynced(extent, PlaceKind::kRaw, file);
  log::info("object {}: {} behind its end, which were never recorded, are cut off", object.value, format_size(info->size_bytes - size_bytes));
  return {};
}

void OrphanSweep::sweep_extents(std::span<const FreedPlace> dead) {
  const bool list = std::exchange(epochs_due_, false);
  if (parts_.orphans.take_extents_due() || list) sweep_extents(dead, list);
}

// Removes extents of earlier epochs that no record names. `list`: of all epochs not searched before (a start that ended before this point
// leaves those of the epoch before it). Otherwise only those the index remembers, except packs of kept epochs: the part that the index knew
// is dead, but a lost record may have put more into them later.
void OrphanSweep::sweep_extents(std::span<const FreedPlace> dead, bool list) {
  std::unordered_map<ExtentId, PlaceKind> nameless;
  std::vector<Leftovers::Extent> left;  // what stays or could not be removed is remembered by name
  bool all = list;
  if (list && nameless_at_start_) nameless = std::move(*nameless_at_start_);
  else if (list) all = list_due(nameless);
  nameless_at_start_.reset();
  for (const Leftovers::Extent& extent : parts_.orphans.extents()) {
    if (is_kept(extent.id) && extent.kind == PlaceKind::kPacked) left.push_back(extent);
    else if (auto usage = parts_.index.find_extent(extent.id); usage && !*usage) nameless.emplace(extent.id, extent.kind);
  }
  if (!nameless.empty()) {
    // Skip extents whose last body was removed since the start: they may still be open, and reclaim() checks that. After one more request,
    // the committer has reported everything that the index did not name above.
    if (Status status = parts_.sync_point(); !status) return log::warn("extents that an earlier life left: {}", status.error().message);
    for (const FreedPlace& freed : dead) nameless.erase(freed.place.extent);
    parts_.dead.for_each([&](const FreedPlace& freed) { nameless.erase(freed.place.extent); });
  }
  uint64_t left_bytes = 0;
  for (const auto& [extent, kind] : nameless) {
    const Status status = parts_.extents.remove(extent, kind);
    if (status) parts_.counters.swept_files.fetch_add(1);
    kill_point("crashed-extent-removed");
    if (status || status.error().code == Code::kNotFound) continue;
    left.push_back({extent, kind});
    left_bytes += allocated_bytes(extent, kind);
  }
  // The next index commit comes after a sync of the directories.
  parts_.orphans.extents_swept(std::move(left), all ? std::optional(parts_.identity.epoch - 1) : std::nullopt, left_bytes);
}

// --- ranges ---

std::unique_ptr<PackSweep> OrphanSweep::make_pack_sweep(PackSweep::Epochs epochs) {
  constexpr unsigned kThreads = 7;
  return std::make_unique<PackSweep>(parts_.extents, parts_.index, epochs, [this](const auto& take) {
    parts_.dead.for_each([&](const FreedPlace& freed) {
      take(freed.place.extent, {freed.place.offset, freed.place.offset + align_up(freed.place.length, kBlockBytes)});
    });
  }, parts_.background && parts_.volume.features().network ? kThreads : 0);
}

OrphanSweep::Packs OrphanSweep::sweep_packs() {
  if (!packs_due() || parts_.orphans.extents_due()) return Packs::kDone;
  if (!pack_sweep_) pack_sweep_ = make_pack_sweep();
  constexpr int64_t kMostNsAtOnce = 50'000'000;
  const int64_t started_ns = parts_.clock.monotonic_ns();
  auto more = pack_sweep_->step();
  while (more && *more && parts_.clock.monotonic_ns() - started_ns < kMostNsAtOnce) more = pack_sweep_->step();
  parts_.orphans.packs_left(pack_sweep_->surplus_bytes());
  if (more && *more) return Packs::kGoOn;
  pack_sweep_over_ = true;
  if (more) parts_.orphans.packs_swept();
  if (!more && more.error().code != Code::kUnsupported)
    log::warn("dead ranges that an earlier life left: {}", more.error().message);
  const bool gave_back = pack_sweep_->ranges() > 0;
  if (gave_back) {
    log::info("gave back {} in {} ranges of {} packs, which an earlier life had left", format_size(pack_sweep_->bytes()),
              pack_sweep_->ranges(), pack_sweep_->packs());
    parts_.counters.punched_ranges.fetch_add(pack_sweep_->ranges(), std::memory_order_relaxed);
    parts_.counters.reclaimed_bytes.fetch_add(pack_sweep_->bytes(), std::memory_order_relaxed);
  }
  pack_sweep_.reset();
  return gave_back ? Packs::kGaveBack : Packs::kDone;
}

}  // namespace kvcachefs
