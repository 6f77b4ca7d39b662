#include "store/upkeep/volume_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/descriptors.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/journal/journal.h"

namespace kvcachefs {

uint64_t VolumeWatch::reserve_bytes(const SpaceInfo& backing) const {
  constexpr uint64_t kReserveBytes = 16 * kMiB;  // some 100,000 removals; a batch takes half of it at most
  constexpr uint64_t kSmallPart = 256;           // of the file system, and a quarter of this of the capacity
  const uint64_t small = std::min(backing.total_bytes / kSmallPart, parts_.space.limit_bytes() / (kSmallPart / 4));
  return std::min(kReserveBytes, small - small % kBlockBytes);
}

void VolumeWatch::keep_reserve_within(uint64_t bytes) {
  if (parts_.reserve.held_bytes() <= bytes) return;
  if (Status shrunk = parts_.reserve.shrink(bytes); !shrunk)
    log::warn("room for the journal that is too large could not be given back: {}", shrunk.error().message);
  parts_.checkpointer.measure_overhead();
}

void VolumeWatch::trim_reserve() {
  if (!parts_.keeps_reserve) return;
  if (const auto backing = parts_.volume.space()) keep_reserve_within(reserve_bytes(*backing));
}

void VolumeWatch::refill_reserve() {
  if (!parts_.keeps_reserve) return;
  const uint64_t bytes = reserve_bytes(seen_);
  keep_reserve_within(bytes);
  const uint64_t held = parts_.reserve.held_bytes();
  const uint64_t lacks = bytes - std::min(bytes, held);
  if (lacks == 0) return;
  const auto backing = parts_.volume.space();
  if (!backing || !parts_.space.try_reserve(lacks)) return;  // the reserve counts against the capacity
  if (Status refilled = parts_.reserve.refill(bytes, backing->available_bytes); !refilled)
    log::warn("room for the journal could not be kept: {}", refilled.error().message);
  parts_.checkpointer.measure_overhead();
  parts_.space.release(lacks);
}

void VolumeWatch::measure_when_due(int64_t now_ns) {
  constexpr int64_t kUnusedNs = 5'000'000'000, kLongUnusedNs = 10'000'000'000;
  const uint64_t used_bytes = parts_.space.physical_bytes() + parts_.space.reserved_bytes();
  const bool is_used = std::exchange(used_bytes_, used_bytes) != used_bytes || parts_.refusals.is_failing() || parts_.refusals.is_gone();
  const bool waits = parts_.volume.features().network && !is_used && measured_ns_;
  if (waits && now_ns - *measured_ns_ < (was_unused_ ? kLongUnusedNs : kUnusedNs)) return;
  was_unused_ = waits;
  measured_ns_ = now_ns;
  measure();
}

void VolumeWatch::measure() {
  look_for_volume();
  parts_.raw_space.measure_changed();
  auto backing = parts_.volume.space();
  if (!backing) return;
  follow_size(*backing);
  parts_.space.set_backing(*backing);
  // There is more space than before: refused writes may succeed now.
  if (backing->available_bytes > seen_.available_bytes || backing->available_files > seen_.available_files)
    parts_.refusals.try_soon();
  seen_ = *backing;
  // The bulk lane tries again, or finds nothing left to try with.
  if (parts_.refusals.is_failing()) parts_.dirty.wake(true);
  keep_spare_files(*backing);
}

// Open files can still be read and written after their directories were removed, but none of that is kept.
void VolumeWatch::look_for_volume() {
  const auto found = parts_.volume.info(epoch_directory(parts_.identity.node, parts_.identity.epoch));
  const bool gone = found ? !found->is_directory : is_not_there(found.error());
  if (!gone && !parts_.read_only) {
    parts_.checkpointer.look_for_journal();
    look_for_volume_file();
  }
  if (gone == parts_.refusals.is_gone()) return;
  Status status;
  if (gone) {
    const Error why{Code::kIo, 0, fmt::format("volume {}: its directories were removed, or others took their place, while it was mounted: what was "
                                              "not read before is lost; `kvcachefs umount --lazy` ends this mount",
                                              parts_.volume.root())};
    log::error("{}", why.message);
    status = std::unexpected(why);
    parts_.refusals.set_gone(why);
  } else {
    parts_.refusals.set_gone({});
  }
  parts_.health.report(Health::Of::kVolume, status);
  parts_.dirty.wake(true);  // calls that wait for the impossible get an error
}

void VolumeWatch::look_for_volume_file() {
  const Status found = file_.look();
  if (!found && !parts_.health.error(Health::Of::kVolumeFile)) log::error("{}", found.error().message);
  parts_.health.report(Health::Of::kVolumeFile, found);
}

// An option given as a percentage follows the file system's current size: disks are enlarged while they are mounted.
void VolumeWatch::follow_size(const SpaceInfo& backing) {
  if (backing.total_bytes == seen_.total_bytes) return;
  if (parts_.options.follow(parts_.defaults(backing))) parts_.space.hope();
}

// Others may take the last inodes, and this process may reach its descriptor limit, at any time.
void VolumeWatch::keep_spare_files(const SpaceInfo& backing) {
  constexpr size_t kSpares = 2;  // a pack for each lane
  constexpr uint64_t kFewFiles = 500'000, kFewDescriptors = 8192;
  if (parts_.read_only || !parts_.background) return;
  if (backing.available_files > kFewFiles && descriptor_limit() >= kFewDescriptors) return;
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const bool were_refused = spares_pause_.failing_for_ns(now_ns) > 0;
  if (were_refused && (backing.available_files == 0 || !spares_pause_.may_try(now_ns))) return;
  const Status kept = parts_.extents.keep_spares(kSpares);
  if (kept) return spares_pause_.succeeded();
  spares_pause_.failed(now_ns);
  if (!were_refused) log::warn("no files could be made for later: {}", kept.error().message);
}

void VolumeWatch::measure_all() {
  parts_.checkpointer.measure_overhead();
  measure();
  std::vector<ExtentId> raw;
  parts_.dead.for_each([&](const FreedPlace& freed) {  // clients that have them open may still write to them
    if (freed.place.kind == PlaceKind::kRaw) raw.push_back(freed.place.extent);
  });
  if (parts_.index.totals().raw_bodies > 0) {
    Status status = parts_.index.scan_extents([&](ExtentId id, const ExtentUsage& usage) {
      if (usage.kind == PlaceKind::kRaw) raw.push_back(id);
      return true;
    });
    if (!status) return;
  }
  parts_.raw_space.measure_all(std::move(raw), [this](ExtentId id) { return parts_.extents.info(id, PlaceKind::kRaw); });
}

}  // namespace kvcachefs
