// What earlier lives left on the volume and no record tells of: extents that were never journaled, or given up and not removed
// any more, and dead ranges of packs. Looked for by the keeper after a start that was not clean, and remembered in the index
// for as long as it is not done (space/orphan_notes.h).
#include <cstdlib>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/store_impl.h"
#include "store/upkeep/pack_sweep.h"

namespace kvcachefs {

namespace {

// Of a file name of an extents directory; none if it is another file's.
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

// Adds the extents of epochs (orphans_.swept_epoch(), this one) that no record names. False if not all could be listed.
bool StoreImpl::list_nameless(std::unordered_map<ExtentId, PlaceKind>& nameless) {
  bool all = true;
  auto list = [&](const std::string& path) {
    auto entries = volume_->list(path);
    if (entries) return std::move(*entries);
    if (entries.error().code != Code::kNotFound) {
      log::warn("extents that a crash left: {}", entries.error().message);
      all = false;
    }
    return std::vector<DirectoryEntry>();
  };
  auto epochs = list_epochs(*volume_, identity_.node);
  if (!epochs) {
    log::warn("extents that a crash left: {}", epochs.error().message);
    return false;
  }
  for (const uint32_t epoch : *epochs) {
    if (epoch <= orphans_.swept_epoch() || epoch >= identity_.epoch) continue;
    const std::string root = epoch_directory(identity_.node, epoch) + "/extents";
    for (const DirectoryEntry& directory : list(root)) {
      for (const DirectoryEntry& file : list(root + "/" + directory.name)) {
        const auto name = parse_extent_name(file.name);
        if (!name) continue;
        const ExtentId extent{epoch, name->first};
        auto usage = index_->find_extent(extent);
        all &= usage.has_value();
        if (usage && !*usage) nameless.emplace(extent, name->second);
      }
    }
  }
  return all;
}

uint64_t StoreImpl::allocated_bytes(ExtentId extent, PlaceKind kind) const {
  auto info = extents_->info(extent, kind);
  return info ? info->allocated_bytes : 0;
}

// At a start: what an earlier life left counts from now on until it is swept. One stat for each pack, and for each extent that no
// record names; the epochs that are to be swept are listed.
void StoreImpl::count_orphans() {
  const bool packs = orphans_.packs_unswept() && volume_->features().punch_hole;  // else DeadSpace knows them
  epochs_due_ = unclean_start_ || judged_tail_ || index_rebuilt_;
  if (!packs && !epochs_due_ && !orphans_.extents_due()) return;
  uint64_t extent_bytes = 0, pack_bytes = 0;
  std::unordered_map<ExtentId, PlaceKind> nameless;
  const bool all = epochs_due_ && list_nameless(nameless);
  for (const auto& [extent, kind] : nameless) extent_bytes += allocated_bytes(extent, kind);
  for (const Leftovers::Extent& extent : orphans_.extents()) extent_bytes += nameless.contains(extent.id) ? 0 : allocated_bytes(extent.id, extent.kind);
  if (all) nameless_at_start_ = std::move(nameless);
  if (packs) {
    pack_sweep_ = make_pack_sweep();
    Status measured;
    while (measured && !pack_sweep_->measured())
      if (auto step = pack_sweep_->step(); !step) measured = std::unexpected(std::move(step).error());
    if (!measured) log::warn("dead ranges that a crash left: {}", measured.error().message);
    pack_bytes = pack_sweep_->surplus_bytes();
    if (pack_sweep_over_) pack_sweep_.reset();
  }
  orphans_.measured(extent_bytes, pack_bytes);
}

// Removes extents of earlier epochs which no record names: written, but never journaled, or given up and not removed any more.
// `list`: of all epochs that were not looked through before; a start that ended before it came here leaves those of the epoch
// before it. Else of what the index remembers. `dead` is what this index point gives back.
void StoreImpl::sweep_extents(std::span<const FreedPlace> dead, bool list) {
  std::unordered_map<ExtentId, PlaceKind> nameless;
  if (list && records_lost_)
    log::warn("extents that no record names are kept, for records are lost: kvcachefs fsck tells of them, when not mounted");
  bool all = list && !records_lost_;
  if (all && nameless_at_start_) nameless = std::move(*nameless_at_start_);
  else if (all) all = list_nameless(nameless);
  nameless_at_start_.reset();
  for (const Leftovers::Extent& extent : orphans_.extents())
    if (auto usage = index_->find_extent(extent.id); usage && !*usage) nameless.emplace(extent.id, extent.kind);
  if (!nameless.empty()) {
    // Not one whose last body was removed since the start: it may be open yet, and reclaim() asks. The committer has told of
    // all that the index did not name above when it is through with one more request.
    if (Status status = sync_point(); !status) return log::warn("extents that a crash left: {}", status.error().message);
    for (const FreedPlace& freed : dead) nameless.erase(freed.place.extent);
    dead_.for_each([&](const FreedPlace& freed) { nameless.erase(freed.place.extent); });
  }
  std::vector<Leftovers::Extent> left;  // what could not be removed is remembered by name
  uint64_t left_bytes = 0;
  for (const auto& [extent, kind] : nameless) {
    const Status status = extents_->remove(extent, kind);
    if (status) counters_.swept_files.fetch_add(1);
    kill_point("crashed-extent-removed");
    if (status || status.error().code == Code::kNotFound) continue;
    left.push_back({extent, kind});
    left_bytes += allocated_bytes(extent, kind);
  }
  // The next commit of the index comes after a sync of the directories.
  orphans_.extents_swept(std::move(left), all ? std::optional(identity_.epoch - 1) : std::nullopt,
                         list && records_lost_ ? UINT64_MAX : left_bytes);
}

// --- ranges ---

std::unique_ptr<PackSweep> StoreImpl::make_pack_sweep() {
  constexpr unsigned kThreads = 7;
  return std::make_unique<PackSweep>(*extents_, *index_, [this](const auto& take) {
    dead_.for_each([&](const FreedPlace& freed) {
      take(freed.place.extent, {freed.place.offset, freed.place.offset + align_up(freed.place.length, kBlockBytes)});
    });
  }, background_ && volume_->features().network ? kThreads : 0);
}

// A part of the work after each step of the keeper, so that it is never away for long. True while there is more.
bool StoreImpl::sweep_packs() {
  if (!orphans_.packs_unswept() || pack_sweep_over_ || judged_tail_ || orphans_.extents_due()) return false;
  if (!volume_->features().punch_hole) return false;
  if (!pack_sweep_) pack_sweep_ = make_pack_sweep();
  constexpr int64_t kMostNsAtOnce = 50'000'000;
  const int64_t started_ns = clock_.monotonic_ns();
  auto more = pack_sweep_->step();
  while (more && *more && clock_.monotonic_ns() - started_ns < kMostNsAtOnce) more = pack_sweep_->step();
  orphans_.packs_left(pack_sweep_->surplus_bytes());
  if (more && *more) return true;
  pack_sweep_over_ = true;
  if (more) orphans_.packs_swept();
  if (!more && more.error().code != Code::kUnsupported)
    log::warn("dead ranges that a crash left: {}", more.error().message);
  if (pack_sweep_->ranges() > 0) {
    log::info("gave back {} in {} ranges of {} packs, which a crash had left", format_size(pack_sweep_->bytes()),
              pack_sweep_->ranges(), pack_sweep_->packs());
    counters_.punched_ranges.fetch_add(pack_sweep_->ranges(), std::memory_order_relaxed);
    counters_.reclaimed_bytes.fetch_add(pack_sweep_->bytes(), std::memory_order_relaxed);
    refresh_space();
  }
  pack_sweep_.reset();
  return false;
}

}  // namespace kvcachefs
