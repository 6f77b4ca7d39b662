// What earlier lives left on the volume and no record tells of: extents that were never journaled, or given up and not removed any
// more, dead ranges of packs, and bytes of raw files behind their ends. Looked for after a start that was not clean, or where the life before had to leave some, and
// remembered in the index for as long as it is not done (space/orphan_notes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/records.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/space/dead_space.h"
#include "store/space/orphan_notes.h"
#include "store/upkeep/pack_sweep.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// A start, then the thread that commits the index: no lock. Blocks on the volume.
class OrphanSweep {
 public:
  struct Parts {
    Volume& volume;
    const FileIdentity& identity;
    Extents& extents;
    const Index& index;
    DeadSpace& dead;
    OrphanNotes& orphans;
    Counters& counters;
    Clock& clock;
    std::function<Status()> sync_point;  // all that is accepted is journaled and synced when it returns
    bool background;                     // threads may help where a call is a round trip
    uint32_t kept_epoch;  // 0, or: nothing of it and the epochs before it is removed because no record names it, for records that did may be lost
  };
  explicit OrphanSweep(Parts parts) : parts_(std::move(parts)) {}

  // At a start: what an earlier life left counts in Space from now on until it is swept. One stat for each pack, and for each extent
  // that no record names. `unclean`: earlier epochs are to be listed for those, whatever the index says.
  void count(bool unclean);
  // At a start: raw files that an earlier life made longer than the journal tells are cut to what it tells, or bytes of that life would come
  // back when one grows. One stat for each.
  void cut_raw_files();

  // There is something that an earlier life may have left, and that was not looked for to its end. Where nothing can be punched what is left
  // in packs stays until they go as a whole.
  bool is_left() const { return epochs_due_ || parts_.orphans.extents_due() || parts_.orphans.packs_unswept(); }
  // sweep_extents() has something to do, or the index is to be told what was found out.
  bool is_due() const { return epochs_due_ || parts_.orphans.extents_due() || parts_.orphans.changed(); }
  // After a commit of the index behind which recovery never goes back; `dead` is what the same index point gives back.
  void sweep_extents(std::span<const FreedPlace> dead);
  // A part of the work on packs, so that the caller is never away for long; not before sweep_extents().
  enum class Packs : uint8_t { kDone, kGoOn, kGaveBack };  // kGaveBack: done, and there is more room on the volume
  Packs sweep_packs();

 private:
  bool packs_due() const { return parts_.orphans.packs_unswept() && !pack_sweep_over_ && parts_.volume.features().punch_hole; }
  void sweep_extents(std::span<const FreedPlace> dead, bool list);
  bool list_nameless(uint32_t after, uint32_t through, std::unordered_map<ExtentId, PlaceKind>& nameless);
  bool list_due(std::unordered_map<ExtentId, PlaceKind>& nameless);
  uint64_t kept_bytes();
  uint64_t measure(PackSweep& packs);
  bool is_kept(ExtentId extent) const { return extent.epoch <= parts_.kept_epoch; }
  uint64_t allocated_bytes(ExtentId extent, PlaceKind kind) const;
  uint64_t unknown_bytes(const std::unordered_map<ExtentId, PlaceKind>& extents) const;
  Status cut_raw_file(ExtentId extent, ObjectId object);
  std::unique_ptr<PackSweep> make_pack_sweep(PackSweep::Epochs epochs);
  std::unique_ptr<PackSweep> make_pack_sweep() { return make_pack_sweep({parts_.kept_epoch, UINT32_MAX}); }

  const Parts parts_;
  bool epochs_due_ = false;  // earlier epochs are to be listed for extents that no record names
  bool pack_sweep_over_ = false;  // this life does not look for dead ranges of packs any more
  std::unique_ptr<PackSweep> pack_sweep_;
  std::optional<std::unordered_map<ExtentId, PlaceKind>> nameless_at_start_;  // until they are swept
};

}  // namespace kvcachefs
